//! Kernel texts compiled for CUDA by NVRTC, which is loaded when it is needed.
#![expect(unsafe_code, reason = "NVRTC is a C interface")]

use std::ffi::{CString, c_char};

use cudarc::nvrtc::result::{
    compile_program, create_program, destroy_program, get_program_log, get_ptx,
};
use cudarc::nvrtc::sys::{is_culib_present, nvrtcProgram};

use crate::backend::Unbuilt;

pub(super) const PRELUDE: &str = include_str!("../../kernels/prelude_cuda.cu");

/// Whether the compiler's library can be loaded.
pub(super) fn is_there() -> bool {
    // SAFETY: it only tries to open the library.
    unsafe { is_culib_present() }
}

/// A program of NVRTC, destroyed when it goes.
struct Program(nvrtcProgram);

impl Drop for Program {
    fn drop(&mut self) {
        // SAFETY: it was created and is not used again. There is nobody to tell of a failure.
        let _ = unsafe { destroy_program(self.0) };
    }
}

/// PTX of a source with its prelude, for an architecture such as `compute_80`; the text ends with
/// a zero byte.
pub(super) fn compile(source: &str, arch: &str) -> Result<Vec<u8>, Unbuilt> {
    let unbuilt = |reason: String| Unbuilt { reason, log: String::new() };
    if !is_there() {
        return Err(unbuilt("there is no libnvrtc.so".into()));
    }
    let source = CString::new(source).map_err(|e| unbuilt(e.to_string()))?;
    let program = create_program(&source, None).map_err(|e| unbuilt(format!("{e:?}")))?;
    let program = Program(program);
    // The CPU's own arithmetic: no contraction, subnormal numbers, rounded division and roots.
    let arch = format!("--gpu-architecture={arch}");
    let options = [arch.as_str(), "--fmad=false", "--ftz=false", "--prec-div=true"];
    // SAFETY: the program was created above.
    let compiled = unsafe { compile_program(program.0, &options) };
    // SAFETY: as above.
    let log = || unsafe { get_program_log(program.0) }.map(|log| text(&log)).unwrap_or_default();
    compiled.map_err(|e| Unbuilt { reason: format!("{e:?}"), log: log() })?;
    // SAFETY: as above, and it is compiled.
    let ptx = unsafe { get_ptx(program.0) }.map_err(|e| unbuilt(format!("{e:?}")))?;
    Ok(ptx.into_iter().map(|c| c as u8).collect())
}

fn text(chars: &[c_char]) -> String {
    let bytes: Vec<u8> = chars.iter().map(|&c| c as u8).filter(|&c| c != 0).collect();
    String::from_utf8_lossy(&bytes).trim().to_string()
}
