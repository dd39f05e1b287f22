//! Arrays that do not match the task are refused before any device is used.

use evener_device::{Device, Kernel, testing::Faults};
use evener_schedule::{Arrays, Closure, KernelTask, Pool, RunError};

use crate::common::{card, without_history};

fn task() -> KernelTask<(), ()> {
    let kernel = Kernel::new("never").rust(|_| panic!("it was launched"));
    KernelTask::arrays(&kernel)
        .input::<u32>()
        .input_rows::<f32>(3)
        .table("table", vec![1u8])
        .output_rows::<u64>(2)
}

fn refusal(pool: &Pool, task: &KernelTask<(), ()>, arrays: Arrays<'_>) -> String {
    match pool.map_arrays(task, arrays) {
        Err(RunError::ArrayMismatch { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn arrays_that_do_not_fit_are_refused_before_any_device_is_asked() {
    let (device, faults) = Faults::wrap(&card("card:0"));
    let (pool, task) = (without_history([device]), task());
    let (numbers, rows) = ([1u32; 4], [1f32; 12]);
    let mut out = [0u64; 8];
    let refused = |arrays: Arrays<'_>| refusal(&pool, &task, arrays);

    assert_eq!(refused(Arrays::new()), "fewer inputs than declared");
    assert_eq!(refused(Arrays::new().input(&numbers).input(&rows)), "fewer outputs than declared");
    let wrong = refused(Arrays::new().input(&rows).input(&rows).output(&mut out));
    assert_eq!(wrong, "input 0 has elements of type f32, declared as u32");
    let wrong = refused(Arrays::new().input(&numbers).input(&rows[..11]).output(&mut out));
    assert_eq!(wrong, "input 1 has 11 elements, not a multiple of its row of 3");
    let wrong = refused(Arrays::new().input(&numbers).input(&rows[..9]).output(&mut out));
    assert_eq!(wrong, "input 0 has 4 items, but input 1 has 3");
    let wrong = refused(Arrays::new().input(&numbers).input(&rows).output(&mut out[..6]));
    assert_eq!(wrong, "input 0 has 4 items, but output 0 has 3");
    let wrong = refused(Arrays::new().input(&numbers).input(&rows).input(&rows).output(&mut out));
    assert_eq!(wrong, "more inputs or outputs than declared");

    let none = KernelTask::arrays(&Kernel::new("none").rust(|_| Ok(())));
    assert_eq!(refusal(&pool, &none, Arrays::new()), "the task declares no inputs or outputs");
    let empty = none.output_rows::<u32>(0);
    let wrong = refusal(&pool, &empty, Arrays::new().output::<u32>(&mut []));
    assert_eq!(wrong, "output 0 has 0 elements, not a multiple of its row of 0");
    assert_eq!(faults.operations(), 0);
}

#[test]
fn result_slices_of_another_length_than_the_items_are_refused() {
    let pool = without_history([Device::cpu()]);
    let never = Closure::new("never", |_: &u32| -> u32 { panic!("it was called") });
    for length in [0, 2, 4] {
        let error = pool.map_into(&never, &[1, 2, 3], &mut vec![0; length]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("task `never` cannot run on these arrays: 3 items, but {length} results")
        );
    }
}

#[test]
fn a_task_with_arrays_says_how_it_is_run() {
    let error = without_history([Device::cpu()]).map(&task(), &[(); 3]).unwrap_err();
    assert!(error.to_string().contains("run it with `map_arrays`"), "{error}");
}

#[test]
fn a_table_of_another_type_is_refused() {
    let task = task().table("table", vec![1u64]);
    let (numbers, rows, mut out) = ([1u32; 4], [1f32; 12], [0u64; 8]);
    let arrays = Arrays::new().input(&numbers).input(&rows).output(&mut out);
    let error = without_history([Device::cpu()]).map_arrays(&task, arrays).unwrap_err();
    assert!(error.to_string().contains("buffer 2 is declared as u8 and given as u64"), "{error}");
}
