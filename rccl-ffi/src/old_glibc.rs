//! `stat64` and `fstat64`, which the C library exports only since glibc 2.33 and the standard library calls.
//!
//! Defined here, hidden, they are found when the library is linked, and it starts with glibc 2.28 too. `cargo xtask install`
//! checks what else the library asks for.

// Both make their system call and, if it fails, put the error's number where `errno` is.
std::arch::global_asm!(
    ".globl stat64",
    ".hidden stat64",
    ".type stat64, @function",
    "stat64:",
    "    mov eax, 4", // SYS_stat
    "    jmp .Lrccl_stat_call",
    ".globl fstat64",
    ".hidden fstat64",
    ".type fstat64, @function",
    "fstat64:",
    "    mov eax, 5", // SYS_fstat
    ".Lrccl_stat_call:",
    "    syscall",
    "    cmp rax, -4095",
    "    jae .Lrccl_stat_failed",
    "    ret",
    ".Lrccl_stat_failed:",
    "    neg eax",
    "    push rbx",
    "    mov ebx, eax",
    "    call __errno_location@PLT",
    "    mov dword ptr [rax], ebx",
    "    pop rbx",
    "    mov eax, -1",
    "    ret",
);

#[cfg(test)]
mod tests {
    use std::{fs, io::ErrorKind};

    #[test]
    fn files_can_still_be_looked_at() {
        let here = fs::metadata("/proc/self/exe").unwrap();
        assert!(here.is_file() && here.len() > 0);
        assert_eq!(fs::metadata("/nonexistent").unwrap_err().kind(), ErrorKind::NotFound);
        assert!(fs::File::open("/dev/null").unwrap().metadata().is_ok());
    }
}
