//! OpenGL, which discovery searches only if no other API has a device.

use super::*;

#[test]
#[ignore = "needs an OpenGL device"]
fn opengl_computes_the_same() {
    let adapters = adapters(Api::Gl).expect("no OpenGL device");
    let description = describe("gl:0".into(), Api::Gl, &adapters[0]);
    assert_eq!(description.memory_bytes, None);
    let (device, _) = device_of(WgpuBackend::open(&description, &adapters[0]).unwrap(), &description);
    for len in [0usize, 1, 5, 1000, (4 << 20) + 3] {
        let bytes: Vec<u8> = (0..len).map(|i| (i * 7 + i / 251) as u8).collect();
        let buffer = device.buffer_from(&bytes).unwrap();
        assert_eq!(device.stream().unwrap().download(&buffer).unwrap().wait().unwrap(), bytes, "{len} bytes");
    }
    let input = device.buffer_from(&(0..1000u32).collect::<Vec<_>>()).unwrap();
    let output = device.buffer::<u32>(1000).unwrap();
    let bound = device.compile(&affine()).unwrap().bind(&[input.arg(), output.arg()]).unwrap();
    let mut stream = device.stream().unwrap();
    stream.launch(&bound, 16, &[3u32, 4]).unwrap();
    let expected: Vec<u32> = (0..1000).map(|i| 3 * i + 4).collect();
    assert_eq!(stream.download(&output).unwrap().wait().unwrap(), expected);
    let mut host = device.host_buffer::<u32>(10, Direction::Download).unwrap();
    host.as_mut_slice().fill(7);
    assert_eq!(host.as_slice(), [7; 10], "memory is memory, whatever it was mapped for");
}
