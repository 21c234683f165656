// SPDX-License-Identifier: Apache-2.0
// Cluster files: identical devices on identical nodes, the links between devices and between nodes,
// and the switches above and below them. Every hardware constant is written `{value: 3.35TB/s,
// source: "where it comes from"}`; bandwidth is per direction. docs/cluster-files.md.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/config.h"
#include "graph/tensor_type.h"

namespace hocket::cost {

/// A hardware constant in the base unit, and its source. 0: not given.
template <Unit kUnit>
struct Constant {
  double value = 0;
  std::string source;
  void fields(Fields& visit) {
    visit("value", value, "value of the constant").unit(kUnit).min(0);
    visit("source", source, "origin of the value; mandatory in shipped files");
  }
};

using Rate = Constant<Unit::flops_s>;
using Bandwidth = Constant<Unit::bytes_s>;
using Bytes = Constant<Unit::bytes>;
using Seconds = Constant<Unit::seconds>;
using Fraction = Constant<Unit::none>;
using Dollars = Constant<Unit::none>;

/// Peak dense arithmetic per element type.
struct Peak {
  Rate f4, f8, bf16, f32, f64;
  void fields(Fields& visit) {
    visit("f4", f4, "4-bit floating point with f32 accumulation, without structured sparsity");
    visit("f8", f8, "both 8-bit floating-point types, likewise");
    visit("bf16", bf16, "bfloat16 and half precision, likewise");
    visit("f32", f32, "32-bit floating point");
    visit("f64", f64, "64-bit floating point");
  }
};

/// Fraction as a function of kernel size, linear in log(size) between the given sizes and constant
/// beyond them. Empty: not given.
struct ShareCurve {
  std::string source;
  std::vector<double> size, share;
  void fields(Fields& visit) {
    visit("source", source, "origin of the shares; mandatory in shipped files");
    visit("size", size, "FLOPs of a kernel, or bytes, ascending");
    visit("share", share, "fractions of the peak that are reached at these sizes");
  }
  bool given() const { return !size.empty(); }
  double at(double of_size) const;
};

/// Achieved fractions of the peaks of some element types.
struct TypedShares {
  std::vector<std::string> types;
  Fraction matmul, attention;  ///< 0: not given
  ShareCurve matmul_by_flops = {}, attention_by_flops = {};
  void fields(Fields& visit) {
    visit("types", types, "element types: f16, bf16, f32, f64, f8_e4m3, f8_e5m2, ...").required();
    visit("matmul", matmul, "share of the arithmetic peak that matrix products reach");
    visit("attention", attention, "share of the arithmetic peak that attention reaches");
    visit("matmul_by_flops", matmul_by_flops,
          "share that matrix products reach, by the FLOPs of a product");
    visit("attention_by_flops", attention_by_flops,
          "share that attention reaches, by the FLOPs of an attention");
  }
};

/// Achieved fraction of the peak, by kind of kernel.
struct Efficiency {
  // The default is 1: the constant is the achieved rate.
  Fraction matmul{1, ""}, attention{1, ""}, memory{1, ""};
  /// Former keys of products of 8-bit operands: reading moves them to `of_types`.
  Fraction matmul_f8 = {};
  ShareCurve matmul_f8_by_flops = {};
  /// Curves that replace these fractions, where given.
  ShareCurve matmul_by_flops = {}, attention_by_flops = {}, memory_by_bytes = {};
  /// Shares of some element types, in place of these.
  std::vector<TypedShares> of_types = {};
  /// Keys that the file lacks, which have typical shares: "matmul", ... Filled in by reading.
  std::vector<std::string> typical = {};
  void fields(Fields& visit) {
    visit("matmul", matmul, "share of the arithmetic peak that matrix products reach");
    visit("attention", attention, "share of the arithmetic peak that attention reaches");
    visit("memory", memory, "share of the memory bandwidth that all other kernels reach");
    visit("matmul_f8", matmul_f8,
          "former key: matmul of an entry of of_types with types [f8_e4m3, f8_e5m2]");
    visit("matmul_by_flops", matmul_by_flops,
          "share that matrix products reach, by the FLOPs of a product");
    visit("matmul_f8_by_flops", matmul_f8_by_flops, "former key: matmul_by_flops of such an entry");
    visit("attention_by_flops", attention_by_flops,
          "share that attention reaches, by the FLOPs of an attention");
    visit("memory_by_bytes", memory_by_bytes,
          "share that other kernels reach, by the bytes that a kernel moves");
    visit("of_types", of_types,
          "shares of products and attention in some element types, in place of the others");
  }
  bool has_former_shares() const { return matmul_f8.value > 0 || matmul_f8_by_flops.given(); }
};

/// Slowdown factors (at least 1) of computation and communication that overlap on one device and
/// share its memory and units. Echo measured them (arXiv 2412.12487, section 5).
struct Overlap {
  Fraction compute{1, ""}, communication{1, ""};
  void fields(Fields& visit) {
    visit("compute", compute,
          "slowdown of a kernel while its device communicates: 1.3 is 30 % longer");
    visit("communication", communication,
          "slowdown of a transfer while a member's or the sender's device computes");
  }
};

/// Cost of the scales and layouts of 8-bit floating-point operands, beside their casts and
/// products.
struct Float8 {
  Fraction maxima, copies;
  void fields(Fields& visit) {
    visit("maxima", maxima,
          "number of times that an operand is read before its cast, to find the maximum for its "
          "scale");
    visit(
        "copies", copies,
        "number of times that a product copies an operand whose last dim it does not reduce over");
  }
};

/// Ops for which the library has no single kernel: one task here is several kernels there.
struct UnfusedOps {
  std::vector<std::string> ops;
  int64_t kernels = 1;
  double traffic = 1;
  std::string source;
  void fields(Fields& visit) {
    visit("ops", ops, "registered ops").required();
    visit("kernels", kernels, "number of kernels, each of which takes `launch`").min(1);
    visit("traffic", traffic, "their total bytes over those of the task's operands").min(1);
    visit("source", source, "origin of these numbers; mandatory in shipped files");
  }
};

/// Tasks with results that the host reads, and messages that it waits for, in the order of
/// launches. It launches nothing meanwhile.
struct HostReads {
  std::vector<std::string> ops;
  std::string source;
  void fields(Fields& visit) {
    visit("ops", ops, "registered compute ops, send, recv");
    visit("source", source, "origin of this list; mandatory in shipped files");
  }
};

/// Host of a device: the tasks that it runs itself (lane `host`), and copies between its memory and
/// the device's (lanes `h2d` and `d2h`).
struct Host {
  Bandwidth kernels;
  Bandwidth copies;
  Seconds copy_latency;
  void fields(Fields& visit) {
    visit("kernels", kernels,
          "bytes/s that kernels read and write on a device's share of the host's cores");
    visit("copies", copies, "bandwidth between the memories of device and host, per direction");
    visit("copy_latency", copy_latency, "time added to each such copy");
  }
  bool given() const { return kernels.value > 0; }
};

/// Device memory that no plan counts: the driver's context, the communicators, and the memory that
/// allocation loses between the tensors of a step.
struct Reserve {
  Bytes context, communicators;
  Fraction fragmentation;
  void fields(Fields& visit) {
    visit("context", context, "driver context, libraries and their workspaces");
    visit("communicators", communicators, "buffers of the collectives library");
    visit("fragmentation", fragmentation,
          "memory that is lost between tensors, over that of the plan: 0.05 is 5 % of it");
  }
};

struct Device {
  std::string name;
  Bytes memory;
  Reserve reserve = {};
  Bandwidth memory_bandwidth;
  Seconds launch;
  Seconds host_launch = {};
  Seconds host_launch_expert = {};
  HostReads host_reads = {};
  Host host = {};
  std::vector<UnfusedOps> unfused_ops = {};
  Overlap overlap = {};
  Float8 float8 = {};
  Peak peak;
  Efficiency efficiency;
  Dollars price;
  void fields(Fields& visit) {
    visit("name", name, "name of the device").required();
    visit("memory", memory, "memory that a rank can use");
    visit("reserve", reserve, "memory that plans do not count; default: none");
    visit("memory_bandwidth", memory_bandwidth, "bandwidth of the device memory");
    visit("launch", launch, "time added to every kernel");
    visit("host_launch", host_launch,
          "time of the host per task launch, one after another; 0: launches take no time");
    visit("host_launch_expert", host_launch_expert,
          "time of the host per expert of a grouped product, if each has its own kernel; 0: one "
          "kernel "
          "for all");
    visit("host_reads", host_reads, "tasks whose result the host waits for; default: none");
    visit("host", host, "speed of a device's host; default: unknown");
    visit("unfused_ops", unfused_ops, "ops that the library runs as several kernels")
        .formerly("several");
    visit("overlap", overlap,
          "slowdown of computation and communication that overlap on the device");
    visit("float8", float8, "cost of scales and layouts of 8-bit operands; default: none");
    visit("peak", peak, "arithmetic peak per element type");
    visit("efficiency", efficiency, "fractions of the peaks that kernels reach");
    visit("price", price, "US dollars per device and hour");
  }
  /// Returns the bytes that a plan may take: without the reserve.
  double plannable() const {
    const double left = memory.value - reserve.context.value - reserve.communicators.value;
    return std::max(0.0, left) / (1 + reserve.fragmentation.value);
  }
  /// Returns the bytes of memory that a plan of `bytes` takes: with the reserve.
  double with_reserve(double bytes) const {
    return bytes * (1 + reserve.fragmentation.value) + reserve.context.value +
           reserve.communicators.value;
  }
};

/// Logits of trainers without a fused kernel for the loss. A task here makes none
/// (linear_cross_entropy), or only logits and their gradient in the model's type (dlogits, where
/// the vocabulary is split over ranks).
struct Logits {
  Fraction memory, traffic;
  Fraction split_memory = {};
  void fields(Fields& visit) {
    visit("memory", memory, "bytes of memory for a logit, at the peak; 0: logits never exist");
    visit("split_memory", split_memory,
          "the same where the vocabulary is split over ranks; 0: as memory");
    visit("traffic", traffic, "bytes that the kernels of a loss and its gradient move for a logit");
  }
  /// Returns the bytes of memory for a logit of a split vocabulary.
  double of_split() const { return split_memory.value > 0 ? split_memory.value : memory.value; }
};

/// Time and memory that a trainer adds and no task shows.
struct Framework {
  Seconds step;
  Logits logits = {};
  ShareCurve speed_by_devices = {};
  void fields(Fields& visit) {
    visit("step", step,
          "time of the host between steps: loading of data, logging, launches of updates");
    visit("logits", logits, "cost of logits, for a loss that is no fused kernel; default: none");
    visit("speed_by_devices", speed_by_devices,
          "speed that steps keep with this number of devices: stragglers, jitter, busy networks");
  }
};

/// Errors of this file's predictions, from published steps. docs/cluster-files.md, Errors.
struct Accuracy {
  std::string basis;
  double low = 0, high = 0;
  std::vector<std::string> fitted, held_out;
  double fitted_error = 0, held_out_error = 0;
  std::string source;
  std::string device = {};
  int64_t ranks = 0;
  bool experts = false, in_view = false;
  void fields(Fields& visit) {
    visit(
        "basis", basis,
        "fitted: constants are fitted to steps of these machines; measured: kernels were timed one "
        "by one; datasheet: constants are typical");
    visit("low", low, "least time of a step, over the predicted one").min(0);
    visit("high", high, "most time of a step, over the predicted one").min(0);
    visit("fitted", fitted, "published steps that constants were fitted to");
    visit("held_out", held_out, "published steps that were predicted only");
    visit("fitted_error", fitted_error, "mean of |predicted / published - 1| over `fitted`").min(0);
    visit("held_out_error", held_out_error, "mean of |predicted / published - 1| over `held_out`")
        .min(0);
    visit("source", source, "origin of the steps; mandatory in shipped files");
    visit("device", device, "device of these steps, if it may be another one than the file's");
    visit("ranks", ranks, "most ranks that one of these steps has; 0: unknown").min(0);
    visit("experts", experts, "whether steps of mixture-of-experts models are among them");
    visit("in_view", in_view,
          "whether `held_out` was in view while the file was made, so that it is no test");
  }
  bool given() const { return high > 0; }
};

/// Duration of a collective that sends `bytes` through a link: start + steps x latency + bytes /
/// bandwidth x (1 + sqrt(half_size / bytes)). A constant of 0 adds nothing; a bandwidth of 0: not
/// given.
struct Curve {
  Seconds start;
  Seconds latency;
  Bandwidth bandwidth;
  Bytes half_size;
  void fields(Fields& visit) {
    visit("start", start, "time of a transfer, once for any number of steps");
    visit("latency", latency, "time per step of an algorithm");
    visit("bandwidth", bandwidth, "bandwidth of large messages, per direction");
    visit("half_size", half_size, "bytes through a link at which half of the bandwidth is reached");
  }
  bool given() const { return bandwidth.value > 0; }
};

/// Errors of a link's constants on times of collectives that they were not fitted to.
struct LinkErrors {
  double mean = 0, worst = 0;
  int64_t ranks = 0;
  std::string source;
  void fields(Fields& visit) {
    visit("mean", mean, "mean of |predicted / measured - 1|").min(0);
    visit("worst", worst, "greatest |predicted / measured - 1|").min(0);
    visit("ranks", ranks, "ranks of the largest group among them").min(0);
    visit("source", source, "origin of the times");
  }
  bool given() const { return ranks > 0; }
};

/// One class of links. A message of n bytes takes start + latency + n / (bandwidth x efficiency) x
/// (1 + sqrt(half_size / n)).
struct Link {
  Seconds latency;
  Bandwidth bandwidth;
  Fraction efficiency{1, ""};
  Seconds start = {};
  Bytes half_size = {};
  /// Protocol for short transfers, with lower latency and less bandwidth: NCCL's LL and LL128. The
  /// faster of the two is used.
  Curve short_messages = {};
  /// Curves of algorithms other than the ring; not given: as for rings.
  Curve tree = {}, direct = {}, message = {};
  LinkErrors held_out = {};
  void fields(Fields& visit) {
    visit("latency", latency, "time of an empty message, per step of an algorithm");
    visit("bandwidth", bandwidth, "bandwidth per direction and device, or per adapter of a node");
    visit("efficiency", efficiency, "share of the bandwidth that large messages reach");
    visit("start", start, "time of a transfer before its first step");
    visit("half_size", half_size, "bytes through a link at which half of the bandwidth is reached");
    visit("short", short_messages, "protocol of short messages (NCCL: LL), if there is one");
    visit("tree", tree, "curve of trees, if it differs from that of rings");
    visit("direct", direct, "curve of all-to-all exchanges, if it differs from that of rings");
    visit("message", message, "curve of sends, if it differs from that of rings");
    visit("held_out", held_out, "errors on times of collectives that were not fitted");
  }
  double bytes_per_s() const { return bandwidth.value * efficiency.value; }
  /// Returns the link's own constants as a curve.
  Curve long_messages() const {
    return {start, latency, {bytes_per_s(), bandwidth.source}, half_size};
  }
};

struct Links {
  Link intra, inter;
  void fields(Fields& visit) {
    visit("intra", intra, "link between devices of one node");
    visit("inter", inter, "link between nodes");
  }
};

/// Sets of devices that share switches, within nodes or beyond them. Traffic that leaves a set goes
/// through its uplink. Sets of one level are identical, and nest in those of the next level.
struct SwitchLevel {
  std::string name;
  int64_t devices = 0;
  Bandwidth bandwidth;
  Fraction oversubscription;
  Seconds latency;
  void fields(Fields& visit) {
    visit("name", name, "name of the level").required();
    visit("devices", devices, "number of devices of a set").min(1).required();
    visit("bandwidth", bandwidth,
          "bandwidth of a set's uplink, per direction; or give oversubscription");
    visit("oversubscription", oversubscription,
          "bandwidth below over bandwidth above: 2 leaves half of it above, 1 all");
    visit("latency", latency, "time added to a step through this uplink");
  }
};

/// Adapters and switch levels, above and below the two link classes.
struct Topology {
  int64_t adapters_per_node = 0;
  bool rails = false;
  std::vector<SwitchLevel> levels;
  void fields(Fields& visit) {
    visit("adapters_per_node", adapters_per_node,
          "network adapters of a node, each with links.inter; 0: one per device")
        .min(0);
    visit("rails", rails,
          "give the adapters of each number switches of their own (rail-optimised)");
    visit("levels", levels, "sets of devices below or above nodes, the smallest first");
  }
};
/// Maximum number of levels in a file, beside devices and nodes.
inline constexpr size_t kMaxLevels = 4;

/// Measured times of one op on one group. Between sizes, log(time) is a monotone cubic in
/// log(bytes).
struct MeasuredTimes {
  std::string op;
  int64_t ranks = 0, nodes = 1;
  std::string source;
  std::vector<double> bytes, us;  ///< ascending sizes, and their times
  void fields(Fields& visit) {
    visit("op", op, "a registered op").required();
    visit("ranks", ranks, "size of the group").min(2).required();
    visit("nodes", nodes, "nodes over which the group is spread evenly").min(1).required();
    visit("source", source, "origin of the times");
    visit("bytes", bytes, "sizes, in bytes, ascending");
    visit("us", us, "their times, in microseconds");
  }
  /// Returns the seconds for a size. Below the measured sizes: the time of the smallest; above
  /// them: proportional to the largest.
  double seconds(double size) const;
};

/// Distribution of a group's members over the sets of one level.
struct Spread {
  int32_t sets = 1;    ///< sets with members
  int32_t fewest = 1;  ///< members in the set that has fewest
  auto operator<=>(const Spread&) const = default;
};

/// Placement of a group's ranks on a cluster: everything that a collective's duration depends on.
struct GroupShape {
  int32_t members = 1;
  int32_t nodes = 1;                           ///< distinct nodes
  int32_t per_node = 1;                        ///< fewest members on any of its nodes
  std::array<Spread, kMaxLevels> levels = {};  ///< of Topology::levels
  uint64_t device_types = 1;                   ///< bit k: some member is on a node of device type k
  auto operator<=>(const GroupShape&) const = default;
};

/// Consecutive nodes that differ from the rest: with the devices and links of another cluster file,
/// or faster by a factor.
struct NodeGroup {
  int64_t first = 0, count = 1;
  std::string cluster;
  double speed = 1, bandwidth = 1;
  std::string source;
  /// Their devices and links, and the errors of their file, filled in by read_cluster().
  Device device = {};
  Links links = {};
  Accuracy accuracy = {};
  void fields(Fields& visit) {
    visit("first", first, "number of the first of these nodes").min(0);
    visit("count", count, "number of these nodes").min(1);
    visit("cluster", cluster,
          "cluster file, relative to this one, with their devices and links; default: this one");
    visit("speed", speed, "factor on the arithmetic and memory rates of their devices");
    visit("bandwidth", bandwidth, "factor on the bandwidth of their links");
    visit("source", source, "origin of these factors; mandatory in shipped files");
  }
};
/// Maximum number of entries of Cluster::heterogeneous_nodes: GroupShape::device_types has a bit
/// for each, and one more.
inline constexpr size_t kMaxNodeGroups = 63;
/// Maximum number of devices of a cluster.
inline constexpr int64_t kMaxDevices = int64_t{1} << 24;

struct Cluster {
  std::string name;
  std::string about;
  int64_t nodes = 1;
  int64_t devices_per_node = 1;
  /// Above 0: ranks are threads of one machine. The device of this file is then one core, and a
  /// rank of t threads has t of them. Ranks that compute at the same time share these cores.
  int64_t cores_per_node = 0;
  /// Describes the machine that reads the file: cores, memory and number of ranks are its own,
  /// filled in by engine::cluster_of. The constants apply until a profile replaces them.
  bool this_machine = false;
  Device device;
  Links links;
  Topology topology;
  Framework framework;
  Accuracy accuracy;
  /// Device types of nodes beside type 0, which has `device` and `links`: entry i is type i + 1.
  std::vector<NodeGroup> heterogeneous_nodes;
  /// Algorithms of the library beyond those of an op's record: "hierarchical".
  std::vector<std::string> algorithms;
  /// Times of groups with the measured placement, used in place of the links' constants.
  std::vector<MeasuredTimes> measured;

  void fields(Fields& visit) {
    visit("name", name, "name of the cluster").required();
    visit("about", about, "one line for people");
    visit("nodes", nodes, "number of nodes").min(1).required();
    visit("devices_per_node", devices_per_node, "ranks per node").min(1).required();
    visit("cores_per_node", cores_per_node,
          "cores that ranks share, as threads; above 0, `device` describes one core")
        .min(0);
    visit("this_machine", this_machine,
          "describe the machine that reads the file; ranks share its cores and divide its memory; "
          "cores_per_node and device.memory must be absent");
    visit("device", device, "device of one rank");
    visit("links", links, "connections between ranks");
    visit("topology", topology, "adapters, and the switches below and above nodes");
    visit("framework", framework, "time of a trainer that no task shows; default: none");
    visit("accuracy", accuracy, "errors of predictions with this file");
    visit("heterogeneous_nodes", heterogeneous_nodes,
          "nodes with other devices or links than the rest")
        .formerly("unlike");
    visit("algorithms", algorithms,
          "further algorithms of the collectives library: hierarchical (inside nodes first)");
    visit("measured", measured, "measured times of collectives, by group");
  }

  int64_t capacity() const { return nodes * devices_per_node; }
  /// Returns whether ranks are threads, so that they compute on the host itself.
  bool device_is_host() const { return cores_per_node > 0; }
  /// Returns whether the cluster gives the speed of its devices' hosts.
  bool knows_hosts() const { return device_is_host() || device.host.given(); }
  int32_t node_of(int32_t rank) const { return rank / static_cast<int32_t>(devices_per_node); }
  int64_t adapters() const {
    return topology.adapters_per_node > 0 ? topology.adapters_per_node : devices_per_node;
  }
  GroupShape shape(std::span<const int32_t> ranks) const;
  /// Device types of nodes: their number, the type of a node, and that of the node of a rank.
  size_t num_device_types() const { return 1 + heterogeneous_nodes.size(); }
  size_t device_type_of_node(int64_t node) const;
  size_t device_type_of(int32_t rank) const {
    return heterogeneous_nodes.empty() ? 0 : device_type_of_node(node_of(rank));
  }
  const Device& device_of(size_t device_type) const {
    return device_type == 0 ? device : heterogeneous_nodes[device_type - 1].device;
  }
  /// Return, for the first `ranks` ranks, their number on nodes of each device type, and the names
  /// of their devices without repetition: "A and B".
  std::vector<int64_t> ranks_of_device_types(int64_t ranks) const;
  std::string device_names(int64_t ranks) const;
  /// Returns the threads per rank: `asked`, or if that is 0 the rank's share of a node's cores, at
  /// least 1.
  int64_t threads_per_rank(int64_t asked, int64_t ranks) const;
  /// Returns the cluster as if all nodes were of one device type.
  Cluster homogeneous(size_t device_type) const;
  /// Returns a homogeneous cluster on which nothing takes longer than here: every constant is the
  /// best of all device types.
  Cluster at_best() const;
  /// Returns the measured times of an op on groups of this shape; null if not measured.
  const MeasuredTimes* measured_on(std::string_view op, const GroupShape& shape) const;
  /// Returns the bytes/s that can leave one set of a level in each direction.
  double uplink(const SwitchLevel& level) const;
  /// Returns the FLOP/s of one device (one core, if cores are shared). Throws Error naming the key
  /// if it is not given.
  double peak_flops(graph::DType dtype) const;
  /// Throws Error (exit code 2) naming the first key that is missing or out of range.
  void validate(const std::string& where) const;
  /// Returns the paths of constants without a source. A prediction lists them; shipped files have
  /// none.
  std::vector<std::string> unsourced() const;

 private:
  void validate_levels(const std::string& where) const;
  void validate_node_groups(const std::string& where) const;
  void validate_ops(const std::string& where) const;
  void validate_measured(const std::string& where) const;
  void validate_curves(const std::string& where) const;
  void validate_accuracy(const std::string& where) const;
};

/// Reads and validates a cluster file, and the files that its `heterogeneous_nodes` name.
Cluster read_cluster(const std::string& path, const std::vector<std::string>& overrides = {});
Cluster parse_cluster(std::string_view text, const std::string& name);
/// Returns YAML that parses to the same cluster, without defaults.
std::string to_yaml(const Cluster& cluster);

}  // namespace hocket::cost
