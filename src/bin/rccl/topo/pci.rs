//! Devices on the PCI bus, seen in sysfs: present even where no driver is.

use serde::Serialize;

use super::tree::Tree;

/// A GPU.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(crate) struct Gpu {
    /// Domain, bus, device and function, as in `0000:01:00.0`.
    pub(crate) address: String,
    /// The device's number within its vendor, four hexadecimal digits.
    pub(crate) device: String,
    /// Its name, where the driver or a list of PCI names knows it.
    pub(crate) name: Option<String>,
    /// The kernel driver bound to it.
    pub(crate) driver: Option<String>,
    /// The link as it is now. Idle links slow down.
    pub(crate) link: Option<Link>,
    /// The link at its best, as the device and its slot allow.
    pub(crate) link_max: Option<Link>,
    /// The memory node nearest to it.
    pub(crate) numa_node: Option<u32>,
    /// The bridges it hangs below, from the processor outwards.
    pub(crate) bridges: Vec<String>,
    /// Whether the machine's console is on it.
    pub(crate) boot_display: bool,
    /// Active NVLinks, where the driver was asked.
    pub(crate) nvlinks: Option<u32>,
}

/// The speed and width of a PCI Express link.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub(crate) struct Link {
    /// Transfers a second and lane, in 1e9.
    pub(crate) gigatransfers: f64,
    /// Lanes.
    pub(crate) lanes: u32,
}

impl Link {
    /// The generation of PCI Express that has this speed, 0 if none has.
    pub(crate) fn generation(self) -> u32 {
        [2.5, 5.0, 8.0, 16.0, 32.0, 64.0]
            .iter()
            .position(|&speed| speed == self.gigatransfers)
            .map_or(0, |index| index as u32 + 1)
    }

    /// What the link carries each way after its encoding, in 1e9 bytes a second, before packet headers.
    pub(crate) fn gigabytes(self) -> f64 {
        let encoding = if self.gigatransfers < 8.0 { 8.0 / 10.0 } else { 128.0 / 130.0 };
        self.gigatransfers * encoding * f64::from(self.lanes) / 8.0
    }
}

impl std::fmt::Display for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "gen{} x{}", self.generation(), self.lanes)
    }
}

const NVIDIA: &str = "0x10de";
const DEVICES: &str = "/sys/bus/pci/devices";

/// Every GPU of NVIDIA's: display controllers that are VGA (0x0300) or 3D (0x0302).
pub(crate) fn gpus(tree: &Tree) -> Vec<Gpu> {
    let is_gpu = |address: &String| {
        let text = |name: &str| tree.text(&format!("{DEVICES}/{address}/{name}")).unwrap_or_default();
        text("vendor") == NVIDIA
            && (text("class").starts_with("0x0300") || text("class").starts_with("0x0302"))
    };
    tree.names(DEVICES).into_iter().filter(is_gpu).map(|address| gpu(tree, address)).collect()
}

fn gpu(tree: &Tree, address: String) -> Gpu {
    let directory = format!("{DEVICES}/{address}");
    let device =
        tree.text(&format!("{directory}/device")).unwrap_or_default().trim_start_matches("0x").to_owned();
    Gpu {
        name: name(tree, &address, &device),
        driver: tree.link_name(&format!("{directory}/driver")),
        link: link(tree, &directory, "current"),
        link_max: link(tree, &directory, "max"),
        numa_node: numa_node(tree, &directory),
        bridges: tree.resolved(&directory).map(|path| bridges(&path)).unwrap_or_default(),
        boot_display: tree.number::<u32>(&format!("{directory}/boot_vga")) == Some(1),
        nvlinks: None,
        device,
        address,
    }
}

fn link(tree: &Tree, directory: &str, which: &str) -> Option<Link> {
    let speed = tree.text(&format!("{directory}/{which}_link_speed"))?;
    let lanes = tree.number(&format!("{directory}/{which}_link_width"))?;
    // Links that do not report (in virtual machines) have 0 or 63 or 255 lanes.
    (1..=32).contains(&lanes).then_some(Link { gigatransfers: gigatransfers(&speed)?, lanes })
}

/// The number in `16.0 GT/s PCIe`, or in `16 GT/s` of old kernels; `None` for `Unknown`.
fn gigatransfers(text: &str) -> Option<f64> {
    text.split_once(" GT/s")?.0.trim().parse().ok()
}

/// The memory node of a device's directory. The kernel says -1 where the firmware named none.
pub(crate) fn numa_node(tree: &Tree, directory: &str) -> Option<u32> {
    tree.number::<i64>(&format!("{directory}/numa_node")).and_then(|node| u32::try_from(node).ok())
}

/// The PCI addresses above the last one in a resolved device path, the root bus included:
/// `/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0` hangs below `pci0000:00` and `0000:00:01.0`.
pub(crate) fn bridges(path: &str) -> Vec<String> {
    let mut above: Vec<String> = path
        .split('/')
        .filter(|part| part.starts_with("pci") && part.contains(':') || is_address(part))
        .map(str::to_owned)
        .collect();
    above.pop();
    above
}

/// Whether `text` has the form of a PCI address.
pub(crate) fn is_address(text: &str) -> bool {
    let parts: Vec<&str> = text.split([':', '.']).collect();
    parts.len() == 4
        && [4, 2, 2, 1].iter().zip(&parts).all(|(&len, part)| part.len() >= len)
        && parts.iter().all(|part| part.chars().all(|c| c.is_ascii_hexdigit()))
}

fn name(tree: &Tree, address: &str, device: &str) -> Option<String> {
    let by_driver = tree.text(&format!("/proc/driver/nvidia/gpus/{address}/information"));
    let by_driver =
        by_driver.as_deref().and_then(|text| super::tree::field(text, "Model")).map(str::to_owned);
    by_driver.or_else(|| {
        ["/usr/share/misc/pci.ids", "/usr/share/hwdata/pci.ids"]
            .iter()
            .find_map(|path| listed_name(&tree.text(path)?, "10de", device))
    })
}

/// The name of a device in a list of PCI names: below its vendor's line, after one tab.
fn listed_name(list: &str, vendor: &str, device: &str) -> Option<String> {
    list.lines()
        .skip_while(|line| !line.starts_with(vendor))
        .skip(1)
        .take_while(|line| line.is_empty() || line.starts_with(['\t', '#']))
        .find_map(|line| line.strip_prefix('\t')?.strip_prefix(device)?.strip_prefix("  ").map(str::to_owned))
}

/// How far apart two devices are, by the bridges above each, in the words that `nvidia-smi topo` uses.
pub(crate) fn distance(one: &Gpu, other: &Gpu) -> &'static str {
    let (a, b) = (&one.bridges, &other.bridges);
    let shared = a.iter().zip(b).take_while(|(x, y)| x == y).count();
    match shared {
        // Nothing shared but the machine: another root bus, maybe another socket.
        0 if one.numa_node.is_some() && one.numa_node == other.numa_node => "NODE",
        0 => "SYS",
        // The root bus only: the processor or chipset forwards.
        1 => "PHB",
        // A switch: one bridge beyond the shared ones on each side is its downstream port.
        _ if a.len() <= shared + 1 && b.len() <= shared + 1 => "PIX",
        _ => "PXB",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn link_speeds() {
        assert_eq!(gigatransfers("16.0 GT/s PCIe"), Some(16.0));
        assert_eq!(gigatransfers("8 GT/s"), Some(8.0));
        assert_eq!(gigatransfers("Unknown"), None);
        let link = Link { gigatransfers: 16.0, lanes: 16 };
        assert_eq!(link.to_string(), "gen4 x16");
        assert!((link.gigabytes() - 31.5).abs() < 0.01);
        assert!((Link { gigatransfers: 2.5, lanes: 4 }.gigabytes() - 1.0).abs() < 1e-9);
    }

    #[test]
    fn addresses_and_bridges() {
        assert!(is_address("0000:01:00.0") && is_address("10000:e1:00.0"));
        assert!(!is_address("pci0000:00") && !is_address("eth0") && !is_address("0000:zz:00.0"));
        assert_eq!(
            bridges("/sys/devices/pci0000:40/0000:40:01.1/0000:41:00.0/0000:42:00.0/0000:43:00.0"),
            ["pci0000:40", "0000:40:01.1", "0000:41:00.0", "0000:42:00.0"]
        );
        assert!(bridges("/sys/devices/virtual/net/lo").is_empty());
    }

    #[test]
    fn names_from_a_list() {
        let list = "# PCI IDs\n1002  AMD\n\t2684  Wrong\n10de  NVIDIA Corporation\n\t2684  AD102 [GeForce RTX 4090]\n\
                    \t\t1043 889a  Board\n\t2b85  GB202 [GeForce RTX 5090]\n8086  Intel\n\t1234  Wrong too\n";
        assert_eq!(listed_name(list, "10de", "2684").as_deref(), Some("AD102 [GeForce RTX 4090]"));
        assert_eq!(listed_name(list, "10de", "2b85").as_deref(), Some("GB202 [GeForce RTX 5090]"));
        assert_eq!(listed_name(list, "10de", "1234"), None);
    }

    #[test]
    fn distances() {
        let gpu = |path: &str, numa_node| Gpu {
            address: String::new(),
            device: String::new(),
            name: None,
            driver: None,
            link: None,
            link_max: None,
            numa_node,
            bridges: bridges(path),
            boot_display: false,
            nvlinks: None,
        };
        let a = gpu("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:08.0/0000:03:00.0", Some(0));
        let b = gpu("/sys/devices/pci0000:00/0000:00:01.0/0000:01:00.0/0000:02:10.0/0000:04:00.0", Some(0));
        let c = gpu("/sys/devices/pci0000:00/0000:00:03.0/0000:05:00.0", Some(0));
        let d = gpu("/sys/devices/pci0000:40/0000:40:01.0/0000:41:00.0", Some(0));
        let e = gpu("/sys/devices/pci0000:80/0000:80:01.0/0000:81:00.0", Some(1));
        assert_eq!(distance(&a, &b), "PIX");
        assert_eq!(distance(&a, &c), "PHB");
        assert_eq!(distance(&c, &d), "NODE");
        assert_eq!(distance(&d, &e), "SYS");
    }
}
