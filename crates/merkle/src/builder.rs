//! From leaves to a root or a tree, over the devices of a pool.

use std::{
    cell::RefCell,
    collections::{HashMap, hash_map::Entry},
    io::Read,
    path::PathBuf,
    rc::Rc,
    sync::Arc,
    time::Duration,
};

use evener_device::{Device, DeviceId};
use evener_schedule::{Cancel, Job, Mapped, Pool, Progress, Report, Settings, Strategy, Trace};
use rayon::prelude::*;

use crate::{
    error::{Error, Result},
    file::LeafFile,
    hash::Digest,
    kernel::{self, LOG_THREADS, MOST_HEIGHT},
    leaves::{Leaves, Source},
    resident::Resident,
    rule::Scheme,
    subtree::{self, Format},
    task::{BlockTask, Items, Nodes, Outcome, Roots},
    tree::MerkleTree,
};

/// Builds roots and trees of one scheme on one pool. What it makes on the devices, kernels and buffers among it, and what
/// it learns about them is kept from one tree to the next, so whoever builds many makes one builder.
///
/// ```
/// use evener_device::Device;
/// use evener_merkle::{Builder, Hash, Leaves, Rule, Scheme};
/// use evener_schedule::Pool;
///
/// let pool = Pool::new([Device::cpu()])?;
/// let builder = Builder::new(&pool).scheme(Scheme::new(Hash::Blake3, Rule::Rfc6962)?);
/// let leaves: Vec<[u8; 32]> = (0..10_000u32).map(|n| [n as u8; 32]).collect();
/// let root = builder.root(&Leaves::from(&leaves))?;
/// let tree = builder.tree(&Leaves::from(&leaves))?;
/// assert_eq!(tree.value().root(), Some(*root.value()));
/// if let Some(report) = root.report() {
///     println!("{report}"); // who did what
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Builder {
    pool: Pool,
    scheme: Scheme,
    options: Options,
    root_jobs: RefCell<Jobs<Roots>>,
    node_jobs: RefCell<Jobs<Nodes>>,
    residents: RefCell<HashMap<(DeviceId, Format), Resident>>,
}

/// The jobs for blocks of a format and a height.
type Jobs<O> = HashMap<(Format, u32), Rc<Job<'static, BlockTask<O>>>>;

type Listener = Arc<dyn Fn(&Progress) + Send + Sync>;

#[derive(Default, Clone)]
struct Options {
    strategy: Option<Strategy>,
    settings: Option<Settings>,
    all_devices: bool,
    trace: bool,
    cancel: Option<Cancel>,
    deadline: Option<Duration>,
    bar: bool,
    listener: Option<Listener>,
    history: Option<Option<PathBuf>>,
}

/// What came of a build, and how it went.
#[derive(Debug, Clone)]
pub struct Built<T> {
    value: T,
    leaves: u64,
    report: Option<Report>,
    trace: Trace,
}

impl<T> Built<T> {
    /// What was built.
    pub fn value(&self) -> &T {
        &self.value
    }

    /// What was built, to keep.
    pub fn into_value(self) -> T {
        self.value
    }

    /// How many leaves there were.
    pub fn leaves(&self) -> u64 {
        self.leaves
    }

    /// Who did what. An item is a block of leaves. Nothing where no run of the pool was needed: for few leaves, for those
    /// that are on a device already, and for a stream.
    pub fn report(&self) -> Option<&Report> {
        self.report.as_ref()
    }

    /// What every lane did, when; empty unless [`Builder::trace`] asked for it.
    pub fn trace(&self) -> &Trace {
        &self.trace
    }

    fn map<U>(self, function: impl FnOnce(T) -> U) -> Built<U> {
        let Built { value, leaves, report, trace } = self;
        Built { value: function(value), leaves, report, trace }
    }
}

/// Fewer blocks than this are done here: no device would be awake sooner.
const FEW_BLOCKS: u64 = 4;
/// Longer leaves are hashed on the processor's cores: a few of them would fill a device's staging memory.
const LONG_LEAF: usize = 4096;
/// A block takes at most so many bytes, unless it is of the lowest height.
const BLOCK_BYTES: usize = 1 << 20;
/// So many bytes of a stream are read before they are hashed, while the next are read.
const GULP_BYTES: usize = 64 << 20;

/// How high blocks are for so many leaves: high enough that their roots are few, low enough that there are many to share.
fn block_height(leaves: u64, leaf_bytes: usize) -> u32 {
    let by_count = match leaves {
        0..0x20_0000 => LOG_THREADS,
        0x20_0000..0x800_0000 => 12,
        _ => 14,
    };
    let by_bytes = (BLOCK_BYTES / leaf_bytes.max(1)).max(1).ilog2();
    by_count.min(by_bytes.max(LOG_THREADS)).min(MOST_HEIGHT)
}

impl Builder {
    /// A builder for a pool, of the default scheme: SHA-256 by the rule of RFC 6962.
    pub fn new(pool: &Pool) -> Builder {
        Builder {
            pool: pool.clone(),
            scheme: Scheme::default(),
            options: Options::default(),
            root_jobs: RefCell::default(),
            node_jobs: RefCell::default(),
            residents: RefCell::default(),
        }
    }

    /// Sets hash function and rule.
    pub fn scheme(mut self, scheme: Scheme) -> Self {
        self.scheme = scheme;
        self
    }

    /// Sets how blocks are shared out, where the pool's own way is not to be used.
    pub fn strategy(self, strategy: Strategy) -> Self {
        self.with(|options| options.strategy = Some(strategy))
    }

    /// Sets what can be tuned, where the pool's own settings are not to be used.
    pub fn settings(self, settings: Settings) -> Self {
        self.with(|options| options.settings = Some(settings))
    }

    /// Uses all devices, also those that are expected to make no difference.
    pub fn all_devices(self) -> Self {
        self.with(|options| options.all_devices = true)
    }

    /// Keeps what every lane did, for [`Built::trace`].
    pub fn trace(self) -> Self {
        self.with(|options| options.trace = true)
    }

    /// Lets builds be cancelled.
    pub fn cancel(self, cancel: &Cancel) -> Self {
        self.with(|options| options.cancel = Some(cancel.clone()))
    }

    /// Ends a build that takes longer.
    pub fn deadline(self, deadline: Duration) -> Self {
        self.with(|options| options.deadline = Some(deadline))
    }

    /// Draws a bar on standard error for builds that take longer than a second; nothing where it is no terminal.
    pub fn progress_bar(self) -> Self {
        self.with(|options| options.bar = true)
    }

    /// Tells how far a build has come, ten times a second and at its end. An item is a block of leaves.
    pub fn on_progress(self, tell: impl Fn(&Progress) + Send + Sync + 'static) -> Self {
        self.with(|options| options.listener = Some(Arc::new(tell)))
    }

    /// Keeps what is learned about the pool's devices in a file of one's own, or nowhere; the user's cache folder has it
    /// otherwise.
    pub fn keep_history_at(self, path: Option<PathBuf>) -> Self {
        self.with(|options| options.history = Some(path))
    }

    /// Jobs are made with the options that there are then.
    fn with(mut self, set: impl FnOnce(&mut Options)) -> Self {
        set(&mut self.options);
        self.root_jobs.get_mut().clear();
        self.node_jobs.get_mut().clear();
        self
    }

    /// The root over some leaves. Fails for no leaves where the rule has no root for none, where leaves cannot be read or
    /// change meanwhile, and where the pool cannot do it.
    pub fn root(&self, leaves: &Leaves<'_>) -> Result<Built<Digest>> {
        let count = leaves.count();
        if count == 0 {
            let root = self.scheme.empty_root().ok_or(Error::NoLeaves { rule: self.scheme.rule() })?;
            return Ok(Built { value: root, leaves: 0, report: None, trace: Trace::default() });
        }
        if let Source::Device(device, _) = &leaves.source {
            let value = self.root_on_device(device, leaves)?;
            return Ok(Built { value, leaves: count, report: None, trace: Trace::default() });
        }
        if let Some(digests) = self.hashed_here(leaves)? {
            return self.root(&Leaves::digests(&digests));
        }
        let format = self.format(leaves);
        let height = block_height(count, format.bytes());
        let scheme = self.scheme;
        let built = self.blocks::<Roots>(leaves, format, height, |blocks| {
            let mut roots = Vec::new();
            subtree::roots(&format, blocks, height, &mut Default::default(), |some| {
                roots.extend_from_slice(some)
            });
            roots
        })?;
        Ok(built.map(|(roots, rest)| join(scheme, [(height, roots), (0, rest)])))
    }

    /// The root over leaves of one size that come from a stream, which may be longer than memory. Fails as
    /// [`Builder::root`], where reading fails, and where the stream ends within a leaf.
    pub fn root_of_stream(&self, stream: impl Read + Send, leaf_bytes: usize) -> Result<Built<Digest>> {
        // No leaves of no size: says why.
        Leaves::of_size(&[], leaf_bytes)?;
        let height = block_height(u64::MAX, leaf_bytes);
        let gulp = (GULP_BYTES / (leaf_bytes << height)).max(1) * (leaf_bytes << height);
        let mut stream = Gulps { stream, gulp };
        let mut next = stream.next()?;
        let (mut roots, mut count) = (Vec::new(), 0);
        while next.len() == gulp {
            let now = next;
            // The next gulp is read while this one is hashed.
            let (hashed, read) = std::thread::scope(|scope| {
                let reading = scope.spawn(|| stream.next());
                let hashed = self.subtree_roots(&Leaves::of_size(&now, leaf_bytes)?, height);
                let read =
                    reading.join().map_err(|_| Error::file("stream".as_ref(), "reading it panicked"))?;
                Ok::<_, Error>((hashed, read))
            })?;
            roots.extend(hashed?);
            count += (gulp / leaf_bytes) as u64;
            next = read?;
        }
        let last = Leaves::of_size(&next, leaf_bytes)?;
        if roots.is_empty() {
            return self.root(&last);
        }
        let format = self.format(&last);
        let value = match next.len() / (leaf_bytes << height) {
            0 => join(self.scheme, [(height, roots), (0, format.bottom_of(&next))]),
            whole => {
                let (blocks, rest) = next.split_at(whole * (leaf_bytes << height));
                roots.extend(self.subtree_roots(&Leaves::of_size(blocks, leaf_bytes)?, height)?);
                join(self.scheme, [(height, roots), (0, format.bottom_of(rest))])
            }
        };
        let leaves = count + last.count();
        Ok(Built { value, leaves, report: None, trace: Trace::default() })
    }

    /// The roots of whole blocks.
    fn subtree_roots(&self, leaves: &Leaves<'_>, height: u32) -> Result<Vec<Digest>> {
        if let Some(digests) = self.hashed_here(leaves)? {
            return self.subtree_roots(&Leaves::digests(&digests), height);
        }
        let format = self.format(leaves);
        let built = self.blocks::<Roots>(leaves, format, height, |blocks| {
            let mut roots = Vec::new();
            subtree::roots(&format, blocks, height, &mut Default::default(), |some| {
                roots.extend_from_slice(some)
            });
            roots
        })?;
        Ok(built.into_value().0)
    }

    /// The whole tree over some leaves: twice as many digests as there are leaves stay in memory. Fails as
    /// [`Builder::root`].
    pub fn tree(&self, leaves: &Leaves<'_>) -> Result<Built<MerkleTree>> {
        let count = leaves.count();
        if count == 0 {
            self.scheme.empty_root().ok_or(Error::NoLeaves { rule: self.scheme.rule() })?;
        }
        if let Source::Device(device, buffer) = &leaves.source {
            let format = self.format(leaves);
            let height = block_height(count, format.bytes());
            let blocks = (count >> height) as usize;
            let (nodes, rest) = self.on_device(device, format, |resident| {
                Ok((resident.nodes(buffer, height, blocks)?, resident.rest(buffer, height, blocks)?))
            })?;
            let value = MerkleTree::from_blocks(self.scheme, height, nodes, format.bottom_of(&rest));
            return Ok(Built { value, leaves: count, report: None, trace: Trace::default() });
        }
        if let Some(digests) = self.hashed_here(leaves)? {
            return self.tree(&Leaves::digests(&digests));
        }
        let format = self.format(leaves);
        let height = block_height(count, format.bytes());
        let scheme = self.scheme;
        let built = self.blocks::<Nodes>(leaves, format, height, |blocks| {
            let whole = |block: &[u8]| {
                let mut nodes = vec![Digest::default(); (2 << height) - 1].into_boxed_slice();
                subtree::whole(&format, block, height, &mut nodes);
                nodes
            };
            blocks.chunks(format.bytes() << height).map(whole).collect()
        })?;
        Ok(built.map(|(blocks, rest)| MerkleTree::from_blocks(scheme, height, blocks, rest)))
    }

    /// Measures how fast each device is alone with blocks as a build of as many leaves has them, as
    /// [`Job::calibrate`](evener_schedule::Job::calibrate). Gives leaves a second; a device that fails has none, and
    /// nobody has for leaves that no run of the pool would be needed for.
    pub fn calibrate(&self, leaves: &Leaves<'_>) -> Result<Vec<(DeviceId, Option<f64>)>> {
        let format = self.format(leaves);
        let height = block_height(leaves.count(), format.bytes());
        let full = leaves.count() >> height;
        if full < FEW_BLOCKS || !self.goes_to_devices(leaves) {
            return Ok(self.pool.devices().iter().map(|device| (device.id().clone(), None)).collect());
        }
        let items = Items::new(leaves, full, format.bytes() << height);
        let rates = self.job::<Roots>(format, height).calibrate(items.blocks())?;
        let leaves_of_block = (1u64 << height) as f64;
        Ok(rates.into_iter().map(|(id, rate)| (id, rate.map(|rate| rate * leaves_of_block))).collect())
    }

    fn format(&self, leaves: &Leaves<'_>) -> Format {
        Format { scheme: self.scheme, leaf_bytes: leaves.leaf_bytes, hashed: leaves.hashed }
    }

    /// Whether there is a kernel for such leaves.
    fn goes_to_devices(&self, leaves: &Leaves<'_>) -> bool {
        let of_one_size = !matches!(leaves.source, Source::Parts(_));
        of_one_size && leaves.leaf_bytes <= LONG_LEAF && kernel::can_do(&self.format(leaves))
    }

    /// The hashes of leaves that are better hashed on the processor's cores: those of unequal length, and long ones.
    fn hashed_here(&self, leaves: &Leaves<'_>) -> Result<Option<Vec<Digest>>> {
        if self.goes_to_devices(leaves) {
            return Ok(None);
        }
        let scheme = self.scheme;
        let each = |bytes: &[u8]| bytes.par_chunks(leaves.leaf_bytes).map(|leaf| scheme.leaf(leaf)).collect();
        Ok(Some(match &leaves.source {
            Source::Parts(parts) => parts.par_iter().map(|leaf| scheme.leaf(leaf)).collect(),
            Source::Bytes(bytes) => each(bytes),
            Source::Shared(bytes) => each(bytes.as_slice()),
            Source::Device(device, buffer) => each(&device.stream()?.download(buffer)?.wait()?),
            Source::File(file) => {
                let count = leaves.count();
                let read = |buffer: &mut Vec<u8>, index: u64| {
                    buffer.resize(leaves.leaf_bytes, 0);
                    file.read(index * leaves.leaf_bytes as u64, buffer)?;
                    Ok(scheme.leaf(buffer))
                };
                let digests: Result<Vec<Digest>, String> =
                    (0..count).into_par_iter().map_init(Vec::new, read).collect();
                let digests = digests.map_err(|detail| of_file(file, detail))?;
                file.is_unchanged()?;
                digests
            }
        }))
    }

    /// Reduces the leaves' whole blocks, on the pool or, where they are few, here; and hashes the rest of the leaves.
    fn blocks<O: Outcome>(
        &self,
        leaves: &Leaves<'_>,
        format: Format,
        height: u32,
        here: impl FnOnce(&[u8]) -> Vec<O::Output>,
    ) -> Result<Built<(Vec<O::Output>, Vec<Digest>)>>
    where
        Self: HasJobs<O>,
    {
        let count = leaves.count();
        let block = format.bytes() << height;
        let full = count >> height;
        let rest = (full * block as u64)..count * format.bytes() as u64;
        let outcome = if full < FEW_BLOCKS {
            let all = bytes_of(leaves, 0..rest.end)?;
            let (blocks, rest) = all.as_ref().split_at(rest.start as usize);
            (here(blocks), format.bottom_of(rest), None, Trace::default())
        } else {
            let items = Items::new(leaves, full, block);
            let mapped = self.job::<O>(format, height).map(items.blocks());
            let mapped = mapped.map_err(|error| match &leaves.source {
                Source::File(file) => file.failure().unwrap_or(error.into()),
                _ => error.into(),
            })?;
            let rest = format.bottom_of(bytes_of(leaves, rest)?.as_ref());
            let (report, trace) = (mapped.report().clone(), mapped.trace().clone());
            (Mapped::into_results(mapped), rest, Some(report), trace)
        };
        if let Source::File(file) = &leaves.source {
            file.is_unchanged()?;
        }
        let (blocks, rest, report, trace) = outcome;
        Ok(Built { value: (blocks, rest), leaves: count, report, trace })
    }

    /// The job for blocks of a kind, with what earlier builds have made and learned.
    fn job<O: Outcome>(&self, format: Format, height: u32) -> Rc<Job<'static, BlockTask<O>>>
    where
        Self: HasJobs<O>,
    {
        let mut jobs = self.jobs().borrow_mut();
        jobs.entry((format, height)).or_insert_with(|| Rc::new(self.new_job(format, height))).clone()
    }

    fn new_job<O: Outcome>(&self, format: Format, height: u32) -> Job<'static, BlockTask<O>> {
        let Options { strategy, settings, all_devices, trace, cancel, deadline, bar, listener, history } =
            self.options.clone();
        let mut job = self.pool.job(&BlockTask::<O>::new(format, height));
        if let Some(strategy) = strategy {
            job = job.strategy(strategy);
        }
        if let Some(settings) = settings {
            job = job.settings(settings);
        }
        if all_devices {
            job = job.all_devices();
        }
        if trace {
            job = job.trace();
        }
        if let Some(cancel) = cancel {
            job = job.cancel(&cancel);
        }
        if let Some(deadline) = deadline {
            job = job.deadline(deadline);
        }
        if let Some(path) = history {
            job = job.keep_history_at(path);
        }
        match listener {
            Some(listener) => job.on_progress(move |progress| listener(progress)),
            None if bar => job.progress_bar(),
            None => job,
        }
    }

    fn root_on_device(&self, device: &Device, leaves: &Leaves<'_>) -> Result<Digest> {
        if let Some(digests) = self.hashed_here(leaves)? {
            return Ok(self.root(&Leaves::digests(&digests))?.into_value());
        }
        let Source::Device(_, buffer) = &leaves.source else { return Ok(self.root(leaves)?.into_value()) };
        let format = self.format(leaves);
        let height = block_height(leaves.count(), format.bytes());
        let blocks = (leaves.count() >> height) as usize;
        let (runs, rest) = self.on_device(device, format, |resident| {
            let runs = if blocks == 0 { Vec::new() } else { resident.roots(buffer, height, blocks)? };
            Ok((runs, resident.rest(buffer, height, blocks)?))
        })?;
        let runs = runs.into_iter().map(|run| (run.level, run.nodes));
        Ok(join(self.scheme, runs.chain([(0, format.bottom_of(&rest))])))
    }

    fn on_device<R>(
        &self,
        device: &Device,
        format: Format,
        work: impl FnOnce(&mut Resident) -> evener_device::Result<R>,
    ) -> Result<R> {
        let mut residents = self.residents.borrow_mut();
        let key = (device.id().clone(), format);
        let resident = match residents.entry(key.clone()) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(place) => place.insert(Resident::new(device, format)?),
        };
        // Whatever failed, the next build begins afresh.
        work(resident).map_err(|error| {
            residents.remove(&key);
            error.into()
        })
    }
}

impl std::fmt::Debug for Builder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Builder").field("scheme", &self.scheme).finish_non_exhaustive()
    }
}

/// Where the jobs of one kind are kept.
pub(crate) trait HasJobs<O: Outcome> {
    fn jobs(&self) -> &RefCell<Jobs<O>>;
}

impl HasJobs<Roots> for Builder {
    fn jobs(&self) -> &RefCell<Jobs<Roots>> {
        &self.root_jobs
    }
}

impl HasJobs<Nodes> for Builder {
    fn jobs(&self) -> &RefCell<Jobs<Nodes>> {
        &self.node_jobs
    }
}

/// Some of the leaves' bytes.
fn bytes_of<'a>(leaves: &'a Leaves<'_>, range: std::ops::Range<u64>) -> Result<std::borrow::Cow<'a, [u8]>> {
    let place = range.start as usize..range.end as usize;
    match &leaves.source {
        Source::Bytes(bytes) => Ok(bytes[place].into()),
        Source::Shared(shared) => Ok((&shared.as_slice()[place]).into()),
        Source::File(file) => {
            let mut bytes = vec![0; place.len()];
            file.read(range.start, &mut bytes).map_err(|detail| of_file(file, detail))?;
            Ok(bytes.into())
        }
        Source::Parts(_) | Source::Device(..) => Ok(Vec::new().into()),
    }
}

/// What went wrong with a file that was read.
fn of_file(file: &LeafFile, detail: String) -> Error {
    file.failure().unwrap_or_else(|| Error::file(file.path(), detail))
}

/// The root over runs of nodes, of the highest level first: each begins where the one before ends, and only the last may
/// be no whole number of nodes of the level before it. There is at least one node.
fn join(
    scheme: Scheme,
    runs: impl IntoIterator<Item = (u32, Vec<Digest>), IntoIter: DoubleEndedIterator>,
) -> Digest {
    let mut runs = runs.into_iter().rev();
    let (mut level, mut nodes) = runs.next().unwrap_or_default();
    for (above, mut run) in runs {
        if !run.is_empty() {
            run.extend(subtree::lift(scheme, nodes, above - level));
            (level, nodes) = (above, run);
        }
    }
    subtree::root(scheme, nodes).unwrap_or_default()
}

/// A stream, some bytes at a time.
struct Gulps<R> {
    stream: R,
    gulp: usize,
}

impl<R: Read> Gulps<R> {
    /// The next bytes: fewer than a gulp only at the end.
    fn next(&mut self) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        let limited = self.stream.by_ref().take(self.gulp as u64).read_to_end(&mut bytes);
        limited.map_err(|error| Error::io("stream".as_ref(), "cannot be read", &error))?;
        Ok(bytes)
    }
}
