//! Arrays that do not fit are refused, and no device is asked.

use evener_device::{Device, Kernel, testing::Faults};
use evener_schedule::{Arrays, Closure, KernelTask, Pool, RunError};

use crate::common::{card, forgetful};

fn task() -> KernelTask<(), ()> {
    let kernel = Kernel::new("never").rust(|_| panic!("it was launched"));
    KernelTask::arrays(&kernel)
        .input::<u32>()
        .input_rows::<f32>(3)
        .table("table", vec![1u8])
        .output_rows::<u64>(2)
}

fn refused(pool: &Pool, task: &KernelTask<(), ()>, arrays: Arrays<'_>) -> String {
    match pool.map_arrays(task, arrays) {
        Err(RunError::Arrays { message, .. }) => message,
        other => panic!("{other:?}"),
    }
}

#[test]
fn arrays_that_do_not_fit_are_refused_before_any_device_is_asked() {
    let (device, faults) = Faults::wrap(&card("card:0"));
    let (pool, task) = (forgetful([device]), task());
    let (numbers, rows) = ([1u32; 4], [1f32; 12]);
    let mut out = [0u64; 8];
    let given = |arrays: Arrays<'_>| refused(&pool, &task, arrays);

    assert_eq!(given(Arrays::new()), "there are too few inputs");
    assert_eq!(given(Arrays::new().input(&numbers).input(&rows)), "there are too few outputs");
    let wrong = given(Arrays::new().input(&rows).input(&rows).output(&mut out));
    assert_eq!(wrong, "input 0 is declared as u32, given as f32");
    let wrong = given(Arrays::new().input(&numbers).input(&rows[..11]).output(&mut out));
    assert_eq!(wrong, "input 1 has 11 elements, which are no rows of 3");
    let wrong = given(Arrays::new().input(&numbers).input(&rows[..9]).output(&mut out));
    assert_eq!(wrong, "input 0 has 4 items, input 1 has 3");
    let wrong = given(Arrays::new().input(&numbers).input(&rows).output(&mut out[..6]));
    assert_eq!(wrong, "input 0 has 4 items, output 0 has 3");
    let wrong = given(Arrays::new().input(&numbers).input(&rows).input(&rows).output(&mut out));
    assert_eq!(wrong, "there are more inputs or outputs than are declared");

    let none = KernelTask::arrays(&Kernel::new("none").rust(|_| Ok(())));
    assert_eq!(refused(&pool, &none, Arrays::new()), "no inputs or outputs are declared");
    let empty = none.output_rows::<u32>(0);
    let wrong = refused(&pool, &empty, Arrays::new().output::<u32>(&mut []));
    assert_eq!(wrong, "output 0 has 0 elements, which are no rows of 0");
    assert_eq!(faults.operations(), 0);
}

#[test]
fn results_with_too_little_or_too_much_room_are_refused() {
    let pool = forgetful([Device::cpu()]);
    let never = Closure::new("never", |_: &u32| -> u32 { panic!("it was called") });
    for room in [0, 2, 4] {
        let error = pool.map_into(&never, &[1, 2, 3], &mut vec![0; room]).unwrap_err();
        assert_eq!(
            error.to_string(),
            format!("task `never` cannot run on these arrays: 3 items with room for {room} results")
        );
    }
}

#[test]
fn a_task_with_arrays_says_how_it_is_run() {
    let error = forgetful([Device::cpu()]).map(&task(), &[(); 3]).unwrap_err();
    assert!(error.to_string().contains("run it with `map_arrays`"), "{error}");
}

#[test]
fn a_table_of_another_type_is_refused() {
    let task = task().table("table", vec![1u64]);
    let (numbers, rows, mut out) = ([1u32; 4], [1f32; 12], [0u64; 8]);
    let arrays = Arrays::new().input(&numbers).input(&rows).output(&mut out);
    let error = forgetful([Device::cpu()]).map_arrays(&task, arrays).unwrap_err();
    assert!(error.to_string().contains("buffer 2 is declared as u8, given as u64"), "{error}");
}
