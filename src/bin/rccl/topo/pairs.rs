//! What joins two GPUs, and which way collectives take between them.

use std::collections::BTreeMap;

use serde::Serialize;

use super::pci::{self, Gpu};
use crate::sys::nvml::Nvml;

/// What the driver knows of GPUs, by PCI address.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Known {
    /// The other end of each active NVLink.
    pub(crate) links: BTreeMap<String, Vec<Option<String>>>,
    /// Whether one can reach the memory of another: 0, or why not, as the driver numbers reasons.
    pub(crate) peers: BTreeMap<(String, String), i32>,
}

/// Two GPUs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(crate) struct Pair {
    /// PCI address of the first.
    pub(crate) one: String,
    /// PCI address of the second.
    pub(crate) other: String,
    /// PIX, PXB, PHB, NODE, SYS: what a transfer crosses on the bus.
    pub(crate) distance: &'static str,
    /// NVLinks between them, direct or through switches.
    pub(crate) nvlinks: u32,
    /// What the driver says of direct access. It may be wrong.
    pub(crate) direct: Option<String>,
    /// The path that collectives take.
    pub(crate) path: &'static str,
    /// Why that one.
    pub(crate) reason: String,
}

impl Pair {
    /// NV# where there are NVLinks, else the distance.
    pub(crate) fn connection(&self) -> String {
        if self.nvlinks > 0 { format!("NV{}", self.nvlinks) } else { self.distance.to_owned() }
    }
}

impl Known {
    /// Asks the driver; nothing is known without one.
    pub(crate) fn ask(gpus: &[Gpu]) -> Self {
        if gpus.is_empty() {
            return Self::default();
        }
        let Some(nvml) = Nvml::load() else { return Self::default() };
        let links = gpus.iter().map(|gpu| (gpu.address.clone(), nvml.links(&gpu.address))).collect();
        let peers = ordered(gpus)
            .filter_map(|(one, other)| {
                let key = (one.address.clone(), other.address.clone());
                Some((key, nvml.peer_status(&one.address, &other.address)?))
            })
            .collect();
        Self { links, peers }
    }

    /// NVLinks from one GPU to another: those that end there, and those that end at something that is no GPU (a switch),
    /// where the other has such too.
    fn nvlinks(&self, one: &Gpu, other: &Gpu, gpus: &[Gpu]) -> u32 {
        let is_gpu = |address: &str| gpus.iter().any(|gpu| gpu.address == address);
        let of = |gpu: &Gpu| self.links.get(&gpu.address).map_or(&[][..], Vec::as_slice);
        let direct = of(one).iter().flatten().filter(|&end| *end == other.address).count();
        let switched =
            |gpu: &Gpu| of(gpu).iter().filter(|end| end.as_deref().is_none_or(|end| !is_gpu(end))).count();
        (direct + switched(one).min(switched(other))) as u32
    }

    /// The driver's word on direct access, both ways.
    fn direct(&self, one: &Gpu, other: &Gpu) -> Option<String> {
        let status = |one: &Gpu, other: &Gpu| self.peers.get(&(one.address.clone(), other.address.clone()));
        let worst = (*status(one, other)?).max(*status(other, one)?);
        Some(match worst {
            0 => "claimed".to_owned(),
            1 => "not with this chipset".to_owned(),
            2 => "not with these GPUs".to_owned(),
            3 => "not across this bus".to_owned(),
            4 => "disabled in the driver's settings".to_owned(),
            5 => "not supported".to_owned(),
            code => format!("unknown ({code})"),
        })
    }
}

fn ordered(gpus: &[Gpu]) -> impl Iterator<Item = (&Gpu, &Gpu)> {
    gpus.iter().flat_map(move |one| {
        gpus.iter().filter(move |other| !std::ptr::eq(one, *other)).map(move |other| (one, other))
    })
}

/// All pairs, each once.
pub(crate) fn pairs(gpus: &[Gpu], known: &Known) -> Vec<Pair> {
    let each = gpus
        .iter()
        .enumerate()
        .flat_map(|(index, one)| gpus[index + 1..].iter().map(move |other| (one, other)));
    each.map(|(one, other)| pair(one, other, gpus, known)).collect()
}

fn pair(one: &Gpu, other: &Gpu, gpus: &[Gpu], known: &Known) -> Pair {
    let direct = known.direct(one, other);
    let unusable = [one, other].into_iter().find(|gpu| gpu.driver.as_deref() != Some("nvidia"));
    let (path, reason) = match (unusable, direct.as_deref()) {
        (Some(gpu), None) => {
            let driver = gpu.driver.as_deref().unwrap_or("no driver");
            ("none", format!("{} is bound to {driver}, not to nvidia", gpu.address))
        }
        (_, Some("claimed")) => {
            ("host", "the driver claims direct access; this version does not use it".to_owned())
        }
        (_, Some(why)) => ("host", format!("direct access: {why}")),
        (None, None) => ("host", "the driver does not say whether there is direct access".to_owned()),
    };
    Pair {
        one: one.address.clone(),
        other: other.address.clone(),
        distance: pci::distance(one, other),
        nvlinks: known.nvlinks(one, other, gpus),
        direct,
        path,
        reason,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gpu(address: &str, bus: &str) -> Gpu {
        Gpu {
            address: address.to_owned(),
            device: "2330".to_owned(),
            name: None,
            driver: Some("nvidia".to_owned()),
            link: None,
            link_max: None,
            numa_node: None,
            bridges: vec![bus.to_owned()],
            boot_display: false,
            nvlinks: None,
        }
    }

    fn known(links: &[(&str, &[&str])], peers: &[(&str, &str, i32)]) -> Known {
        let end = |end: &&str| (!end.is_empty()).then(|| (*end).to_owned());
        Known {
            links: links
                .iter()
                .map(|(gpu, ends)| ((*gpu).to_owned(), ends.iter().map(end).collect()))
                .collect(),
            peers: peers.iter().map(|(a, b, status)| (((*a).to_owned(), (*b).to_owned()), *status)).collect(),
        }
    }

    const A: &str = "0000:01:00.0";
    const B: &str = "0000:41:00.0";
    const C: &str = "0000:81:00.0";

    #[test]
    fn bridged_cards_and_switched_ones_count_their_links() {
        let gpus = [gpu(A, "pci0000:00"), gpu(B, "pci0000:40"), gpu(C, "pci0000:80")];
        // A and B are bridged by two links; C has none.
        let bridge = known(&[(A, &[B, B]), (B, &[A, A])], &[]);
        let connections: Vec<_> = pairs(&gpus, &bridge).iter().map(Pair::connection).collect();
        assert_eq!(connections, ["NV2", "SYS", "SYS"]);
        // All have three links to switches, of which one does not tell what it is.
        let switch = ["0000:a1:00.0", "0000:a2:00.0", ""];
        let switched = known(&[(A, &switch), (B, &switch), (C, &switch)], &[]);
        let connections: Vec<_> = pairs(&gpus, &switched).iter().map(Pair::connection).collect();
        assert_eq!(connections, ["NV3", "NV3", "NV3"]);
    }

    #[test]
    fn the_path_has_a_reason() {
        let gpus = [gpu(A, "pci0000:00"), gpu(B, "pci0000:00")];
        let of = |peers: &[(&str, &str, i32)]| pairs(&gpus, &known(&[], peers)).remove(0);
        let claimed = of(&[(A, B, 0), (B, A, 0)]);
        assert_eq!((claimed.distance, claimed.path), ("PHB", "host"));
        assert!(claimed.reason.contains("does not use it"), "{claimed:?}");
        assert!(of(&[(A, B, 0), (B, A, 1)]).reason.contains("not with this chipset"));
        assert!(of(&[]).reason.contains("does not say"));
        let mut unbound = gpus.clone();
        unbound[1].driver = Some("vfio-pci".to_owned());
        let pair = pairs(&unbound, &Known::default()).remove(0);
        assert_eq!(pair.path, "none");
        assert!(pair.reason.contains(B) && pair.reason.contains("vfio-pci"), "{}", pair.reason);
    }

    #[test]
    fn one_gpu_has_no_pair() {
        assert!(pairs(&[gpu(A, "pci0000:00")], &Known::default()).is_empty());
        assert_eq!(Known::ask(&[]), Known::default());
    }
}
