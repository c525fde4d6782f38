//! Prints a C program that compiles only if rdma-core's headers lay out every struct, and define every constant, as
//! `rccl_transport::verbs::sys::abi` has them. `cargo xtask lab --reference` compiles it.

use rccl_transport::verbs::sys::abi::{CONSTANTS, LAYOUT};

/// Structs that the library allocates, of which only the beginning is described, and one that has grown since.
const PARTIAL: [&str; 4] = ["ibv_context", "ibv_cq", "ibv_qp", "ibv_port_attr"];

fn main() {
    println!("#include <infiniband/verbs.h>\n#include <stddef.h>");
    for &(name, field, value) in LAYOUT {
        let what = match field {
            "" if PARTIAL.contains(&name) => continue,
            "" => format!("sizeof(struct {name})"),
            // Anonymous there, flat here.
            "remote_addr" | "rkey" if name == "ibv_send_wr" => {
                format!("offsetof(struct {name}, wr.rdma.{field})")
            }
            _ => format!("offsetof(struct {name}, {field})"),
        };
        println!("_Static_assert({what} == {value}, \"{name}.{field}\");");
    }
    for &(name, value) in CONSTANTS {
        println!("_Static_assert((unsigned long long){name} == {value}ULL, \"{name}\");");
    }
    println!("int main(void) {{ return 0; }}");
}
