//! `rccl topo`: what the machine is made of, as far as moving bytes is concerned.

pub(crate) mod cpu;
pub(crate) mod host;
pub(crate) mod memory;
pub(crate) mod net;
mod pairs;
pub(crate) mod pci;
mod render;
pub(crate) mod tree;

use std::{process::ExitCode, thread};

use serde::Serialize;

use crate::{error::Result, output};
use tree::Tree;

/// Show the processors, memory, network interfaces and GPUs of this machine, and how they are connected
///
/// Everything is read from the kernel's files, and of the NVIDIA driver, where there is one, what joins GPUs; nothing is changed.
#[derive(Debug, clap::Args)]
pub(crate) struct Options {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A machine.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Machine {
    pub(crate) host: host::Host,
    pub(crate) cpu: cpu::Cpu,
    pub(crate) numa_nodes: Vec<cpu::Node>,
    pub(crate) memory: memory::Memory,
    pub(crate) interfaces: Vec<net::Interface>,
    pub(crate) rdma: Vec<net::Rdma>,
    pub(crate) gpus: Vec<pci::Gpu>,
    pub(crate) gpu_pairs: Vec<pairs::Pair>,
}

impl Machine {
    /// This machine, now.
    pub(crate) fn here() -> Self {
        let usable = thread::available_parallelism().map_or(1, usize::from);
        let mut machine = Self::read(&Tree::machine(), &net::addresses(), usable);
        net::ask_library(&mut machine.rdma);
        machine
    }

    /// The same, and what the driver knows of the way between its GPUs.
    fn with_driver() -> Self {
        let mut machine = Self::here();
        let known = pairs::Known::ask(&machine.gpus);
        machine.gpu_pairs = pairs::pairs(&machine.gpus, &known);
        for gpu in &mut machine.gpus {
            gpu.nvlinks = known.links.get(&gpu.address).map(|links| links.len() as u32);
        }
        machine
    }

    /// The machine whose files lie in `tree`. What files do not tell is given beside them.
    pub(crate) fn read(tree: &Tree, addresses: &[net::Address], usable: usize) -> Self {
        let gpus = pci::gpus(tree);
        Self {
            host: host::read(tree),
            cpu: cpu::read(tree, usable),
            numa_nodes: cpu::nodes(tree),
            memory: memory::read(tree),
            interfaces: net::interfaces(tree, addresses),
            rdma: net::rdma(tree),
            gpu_pairs: pairs::pairs(&gpus, &pairs::Known::default()),
            gpus,
        }
    }

    /// The machine in a few words, for the head of a table and for records.
    pub(crate) fn summary(&self) -> String {
        let mut parts =
            vec![format!("{} ({} of {} CPUs)", self.cpu.model, self.cpu.usable, self.cpu.threads)];
        if !self.gpus.is_empty() {
            let name = self.gpus[0].name.as_deref().unwrap_or("GPU");
            parts.push(format!("{} x {name}", self.gpus.len()));
        }
        if let Some(hypervisor) = &self.host.hypervisor {
            parts.push(format!("virtual ({hypervisor})"));
        }
        parts.push(format!("Linux {}", self.host.kernel));
        parts.join(", ")
    }
}

pub(crate) fn run(options: &Options) -> Result<ExitCode> {
    let machine = Machine::with_driver();
    if options.json {
        output::json(&machine)?;
    } else {
        output::line(render::text(&machine).trim_end())?;
    }
    Ok(ExitCode::SUCCESS)
}

#[cfg(test)]
mod tests;
