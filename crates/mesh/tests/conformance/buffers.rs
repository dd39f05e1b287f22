//! Collectives on device buffers give the same results as in host memory.

use evener_device::{Buffer, Device, Stream};
use evener_mesh::comm::{Communicator, GroupSpec, ReduceOp};

use crate::{
    Rank,
    reference::{Sample, assert_same, given, reduced},
};

/// Blocks of one piece, and of several.
const LENGTHS: [usize; 3] = [0, 7, 300_001];

pub fn buffers_give_what_host_memory_gives(rank: &Rank) {
    let ranks: Vec<_> = (0..rank.world.size()).collect();
    let group = rank.world.new_group(GroupSpec::new("buffers", ranks)).unwrap();
    let device = Device::cpu();
    let mut one = BufferChecker { group: &group, device: &device, stream: device.stream().unwrap() };
    for len in LENGTHS {
        one.every::<f32>(len, len as u64);
        one.every::<u8>(len, len as u64 + 1);
    }
    let weights = (group.size() - 1) as f32;
    let mean = device.buffer_from(&vec![group.rank().unwrap() as f32; 1000]).unwrap();
    group.weighted_all_reduce_buffer(&device, &mut one.stream, &mean, 1.0).unwrap();
    one.assert_holds("weighted_all_reduce", &mean, &vec![weights / 2.0; 1000]);
}

struct BufferChecker<'a> {
    group: &'a Communicator,
    device: &'a Device,
    stream: Stream,
}

impl BufferChecker<'_> {
    fn upload<T: Sample>(&self, elements: &[T]) -> Buffer<T> {
        self.device.buffer_from(elements).unwrap()
    }

    fn assert_holds<T: Sample>(&mut self, what: &str, buffer: &Buffer<T>, expected: &[T]) {
        let found = self.stream.download(buffer).unwrap().wait().unwrap();
        assert_same(&format!("{what} of {} {}", expected.len(), T::TYPE), &found, expected);
    }

    fn every<T: Sample>(&mut self, len: usize, seed: u64) {
        let (group, device) = (self.group, self.device);
        let (me, size) = (group.rank().unwrap(), group.size());
        let (root, last) = (size / 2, size - 1);
        let ones: Vec<Vec<T>> = (0..size).map(|rank| given(seed, rank, len)).collect();
        let manys: Vec<Vec<T>> = (0..size).map(|rank| given(seed + 99, rank, len * size)).collect();
        let (one, many) = (self.upload(&ones[me]), self.upload(&manys[me]));
        let (into, into_many) = (self.upload(&vec![T::default(); len]), self.upload(&manys[me]));
        let block = |of: usize, index: usize| &manys[of][index * len..][..len];

        group.all_gather_buffer(device, &mut self.stream, &one, &into_many).unwrap();
        self.assert_holds("all_gather", &into_many, &ones.concat());
        group.all_to_all_buffer(device, &mut self.stream, &many, &into_many).unwrap();
        let crossed: Vec<_> = (0..size).map(|from| block(from, me)).collect();
        self.assert_holds("all_to_all", &into_many, &crossed.concat());
        group.reduce_scatter_buffer(device, &mut self.stream, &many, &into, ReduceOp::Sum).unwrap();
        let parts: Vec<_> = crossed.iter().map(|it| it.to_vec()).collect();
        self.assert_holds("reduce_scatter", &into, &reduced(ReduceOp::Sum, &parts));
        group.scatter_buffer(device, &mut self.stream, (me == root).then_some(&many), &into, root).unwrap();
        self.assert_holds("scatter", &into, block(root, me));
        let at_root = (me == root).then_some(&into_many);
        group.gather_buffer(device, &mut self.stream, &one, at_root, root).unwrap();
        self.assert_holds("gather", &into_many, &if me == root { ones.concat() } else { crossed.concat() });
        if size > 1 && me == 0 {
            group.send_buffer(device, &mut self.stream, &one, last).unwrap();
        } else if size > 1 && me == last {
            group.recv_buffer(device, &mut self.stream, &into, 0).unwrap();
            self.assert_holds("recv", &into, &ones[0]);
        }
        group.reduce_buffer(device, &mut self.stream, &one, ReduceOp::Max, root).unwrap();
        let all = reduced(ReduceOp::Max, &ones);
        self.assert_holds("reduce", &one, if me == root { &all } else { &ones[me] });
        group.broadcast_buffer(device, &mut self.stream, &one, root).unwrap();
        self.assert_holds("broadcast", &one, &all);
        let mine = self.upload(&ones[me]);
        group.all_reduce_buffer(device, &mut self.stream, &mine, ReduceOp::Sum).unwrap();
        self.assert_holds("all_reduce", &mine, &reduced(ReduceOp::Sum, &ones));
    }
}
