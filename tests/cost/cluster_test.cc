// SPDX-License-Identifier: Apache-2.0
// Cluster files: the shipped ones are readable, every constant in them has a source, and invalid
// ones are refused with the key named.
#include "cost/cluster.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"
#include "base/file.h"
#include "base/glob.h"
#include "cost/datasheets.h"
#include "tests/data/data_util.h"

namespace hocket::cost {
namespace {

std::string folder() {
  const char* root = std::getenv("HOCKET_SOURCE_DIR");
  return std::string(root ? root : ".") + "/configs/clusters";
}

TEST(Cluster, ShippedFilesAreValidAndSourced) {
  const auto files = list_glob(folder() + "/*.yaml");
  EXPECT_GE(files.size(), 3u);
  for (const std::string& file : files) {
    SCOPED_TRACE(file);
    const Cluster c = read_cluster(file);
    EXPECT_EQ(c.unsourced(), std::vector<std::string>{});
    EXPECT_EQ(c.name + ".yaml", file_name(file));
  }
}

TEST(Cluster, ConstantsAreInBaseUnits) {
  const Cluster c = read_cluster(folder() + "/h100-64x8.yaml");
  EXPECT_EQ(c.capacity(), 512);
  EXPECT_EQ(c.device.memory.value, 80.0 * (int64_t{1} << 30));
  EXPECT_EQ(c.device.memory_bandwidth.value, 3.35e12);
  EXPECT_EQ(c.peak_flops(graph::DType::bf16), 989e12);
  EXPECT_EQ(c.peak_flops(graph::DType::f16), 989e12);
  EXPECT_EQ(c.peak_flops(graph::DType::f32), 67e12);
  EXPECT_EQ(c.links.intra.bandwidth.value, 450e9);
  EXPECT_EQ(c.links.inter.bandwidth.value, 50e9);  // 400 Gbit/s
  EXPECT_DOUBLE_EQ(c.links.intra.latency.value, 2e-6);
}

const char* kSmall = R"(
name: small
nodes: 2
devices_per_node: 2
device:
  name: d
  memory: {value: 1GB, source: s}
  memory_bandwidth: {value: 1GB/s, source: s}
  peak: {f32: {value: 1TFLOP/s, source: s}}
links:
  intra: {latency: {value: 1us, source: s}, bandwidth: {value: 1GB/s, source: s}}
  inter: {latency: {value: 1us, source: s}, bandwidth: {value: 1GB/s}}
)";

std::string refusal(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  EXPECT_NE(at, std::string::npos);
  text.replace(at, from.size(), to);
  try {
    parse_cluster(text, "small.yaml");
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2);
    return e.what();
  }
  return "";
}

TEST(Cluster, MissingSourcesAreListed) {
  const Cluster c = parse_cluster(kSmall, "small.yaml");
  EXPECT_EQ(c.unsourced(), std::vector<std::string>{"links.inter.bandwidth"});
}

/// Shares that a file does not give are those of the shipped datasheet files, but for cores and for
/// those that a curve replaces.
TEST(Cluster, AbsentSharesAreTypical) {
  const Efficiency typical = read_cluster(folder() + "/h100-64x8.yaml").device.efficiency;
  const auto shares_of = [](const std::string& more) {
    std::string text = kSmall;
    text.replace(text.find("  peak:"), 7, more + "  peak:");
    return parse_cluster(text, "small.yaml").device.efficiency;
  };
  const Efficiency none = shares_of("");
  EXPECT_EQ(none.matmul.value, typical.matmul.value);
  EXPECT_EQ(none.attention.value, typical.attention.value);
  EXPECT_EQ(none.memory.value, typical.memory.value);
  EXPECT_EQ(none.typical, (std::vector<std::string>{"matmul", "attention", "memory"}));
  EXPECT_NE(none.memory.source.find("typical of datasheet files"), std::string::npos);
  const Efficiency some = shares_of(
      "  efficiency: {matmul: {value: 1}, memory_by_bytes: {source: s, size: [1], share: "
      "[0.5]}}\n");
  EXPECT_EQ(some.matmul.value, 1);
  EXPECT_EQ(some.memory.value, 1);
  EXPECT_EQ(some.typical, std::vector<std::string>{"attention"});
  std::string cores = kSmall;
  cores.replace(cores.find("device:"), 7, "cores_per_node: 2\ndevice:");
  EXPECT_EQ(parse_cluster(cores, "cores.yaml").device.efficiency.memory.value, 1);
  // A share of 1 is not lost by writing.
  Cluster c = parse_cluster(kSmall, "small.yaml");
  c.device.efficiency.matmul = {1, ""};
  EXPECT_EQ(parse_cluster(to_yaml(c), "again").device.efficiency.matmul.value, 1);
}

/// Links between devices of a node are not asked for where a node has one.
TEST(Cluster, NodesOfOneDeviceNeedNoLinkInside) {
  std::string text = kSmall;
  text.replace(text.find("devices_per_node: 2"), 19, "devices_per_node: 1");
  const size_t intra = text.find("  intra:");
  text.erase(intra, text.find('\n', intra) + 1 - intra);
  EXPECT_EQ(parse_cluster(text, "ones.yaml").capacity(), 2);
  EXPECT_NE(refusal(text, "devices_per_node: 1", "devices_per_node: 2").find("links.intra"),
            std::string::npos);
}

TEST(Cluster, KnownDevicesAreComparedWithTheirDatasheets) {
  Device device;
  device.name = "NVIDIA H100 80GB HBM3";
  device.peak.bf16.value = 989e12;
  device.memory_bandwidth.value = 2.4e12;  // slower ones are sold
  EXPECT_EQ(far_from_datasheet(device), std::vector<std::string>{});
  device.peak.bf16.value = 1979e12;
  device.memory_bandwidth.value = 3.35e12 / 8;
  const std::vector<std::string> far = far_from_datasheet(device);
  ASSERT_EQ(far.size(), 2u);
  EXPECT_EQ(far[0],
            "device.peak.bf16 is 1979TFLOP/s, and the datasheet of h100 has 989TFLOP/s dense; "
            "peaks with sparsity are twice as high");
  EXPECT_TRUE(far[1].starts_with("device.memory_bandwidth is ")) << far[1];
  device.name = "my device";
  EXPECT_EQ(far_from_datasheet(device), std::vector<std::string>{});
  for (const std::string& file : list_glob(folder() + "/*.yaml")) {
    EXPECT_EQ(far_from_datasheet(read_cluster(file).device), std::vector<std::string>{}) << file;
  }
  EXPECT_EQ(device_model("A100-SXM4-40GB"), "a100");
  EXPECT_EQ(device_model("GeForce RTX 4090"), "4090");
  EXPECT_EQ(device_model("AMD Instinct MI300X"), "mi300x");
  EXPECT_EQ(device_model("8x Gaudi"), "");
  EXPECT_EQ(device_model("80GB card of kind X500"), "x500");
}

/// Reports tell whose steps the errors are of, so every shipped file with errors tells it, too.
TEST(Cluster, ErrorsOfShippedFilesNameDeviceAndRanks) {
  for (const std::string& file : list_glob(folder() + "/*.yaml")) {
    SCOPED_TRACE(file);
    const Accuracy accuracy = read_cluster(file).accuracy;
    if (!accuracy.given()) continue;
    EXPECT_NE(device_model(accuracy.device), "");
    EXPECT_GT(accuracy.ranks, 0);
  }
}

TEST(Cluster, ErrorsAndReservesAreChecked) {
  Cluster c = parse_cluster(kSmall, "small.yaml");
  EXPECT_DOUBLE_EQ(c.device.plannable(), 1e9);
  c.device.reserve = {{1e8, "s"}, {1e8, "s"}, {0.25, "s"}};
  EXPECT_DOUBLE_EQ(c.device.plannable(), 8e8 / 1.25);
  c.accuracy = {"fitted", 0.9, 1.1, {"a"}, {"b"}, 0.03, 0.05, "s"};
  c.framework.logits = {{6, "s"}, {30, "s"}};
  c.validate("c");
  EXPECT_EQ(to_yaml(parse_cluster(to_yaml(c), "small.yaml")), to_yaml(c));
  const auto refusal = [](Cluster wrong) {
    try {
      wrong.validate("c");
    } catch (const Error& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  Cluster wrong = c;
  wrong.accuracy.basis = "guess";
  EXPECT_NE(refusal(wrong).find("accuracy.basis is 'guess'"), std::string::npos);
  wrong = c;
  wrong.accuracy.low = 1.2;
  EXPECT_NE(refusal(wrong).find("expected 0 < low <= 1"), std::string::npos);
  wrong = c;
  wrong.device.reserve.context.value = 1e9;
  EXPECT_NE(refusal(wrong).find("device.reserve is all of"), std::string::npos);
  wrong = c;
  wrong.accuracy.source = "";
  EXPECT_EQ(wrong.unsourced().front(), "accuracy");
}

TEST(Cluster, ErrorsNameTheKey) {
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  has(refusal(kSmall, "memory: {value: 1GB,", "memory: {value: -1GB,"), "memory");
  has(refusal(kSmall, "memory: {value: 1GB, source: s}", ""), "device.memory is missing");
  has(refusal(kSmall, "1TFLOP/s", "1TB/s"), "FLOP");
  has(refusal(kSmall, "latency", "latensy"), "latency");
  has(refusal(kSmall, "peak: {f32: {value: 1TFLOP/s, source: s}}", ""), "device.peak");
  has(refusal(kSmall, "nodes: 2", "nodes: 0"), "nodes");
  has(refusal(kSmall, "name: d", "name: d\n  efficiency: {matmul: {value: 1.5}}"), "share");
  has(refusal(kSmall, "name: d", "name: d\n  efficiency: {matmul: {value: 0}}"), "share above 0");
  has(refusal(kSmall, "nodes: 2", "nodes: 20000000"), "at most");
  has(refusal(kSmall, "name: d", "name: d\n  overlap: {compute: {value: 0.9}}"),
      "device.overlap.compute is 0.9; expected a factor from 1 to 100");
  has(refusal(kSmall, "name: d", "name: d\n  host: {kernels: {value: 1GB/s}}"),
      "expected both or neither");
  has(refusal(kSmall, "name: d",
              "name: d\n  host: {kernels: {value: 1GB/s}, copies: {value: -1GB/s}}"),
      "copies");
  using graph::DType;
  for (const auto& [dtype, part] :
       {std::pair{DType::bf16, "device.peak.bf16"}, std::pair{DType::f16, "device.peak.bf16"},
        std::pair{DType::f8_e5m2, "device.peak.f8"}, std::pair{DType::f4_e2m1, "device.peak.f4"},
        std::pair{DType::i8, "expected a floating-point type"}}) {
    try {
      parse_cluster(kSmall, "small.yaml").peak_flops(dtype);
      ADD_FAILURE() << to_string(dtype);
    } catch (const Error& e) {
      has(e.what(), part);
    }
  }
}

TEST(Cluster, HeterogeneousNodesHaveDevicesAndLinksOfTheirOwn) {
  const data::TempFolder temp;
  std::string other = kSmall;
  other.replace(other.find("1TFLOP"), 1, "4");
  temp.add("other.yaml", other);
  const std::string groups =
      "heterogeneous_nodes:\n"
      "  - {count: 1, cluster: other.yaml, bandwidth: 0.5, source: s}\n"
      "  - {first: 2, count: 2, speed: 0.25}\n";
  std::string text = kSmall;
  text.replace(text.find("nodes: 2"), 8, "nodes: 5");
  const Cluster c = read_cluster(temp.add("c.yaml", text + groups));
  EXPECT_EQ(c.num_device_types(), 3u);
  EXPECT_EQ(c.device_type_of_node(0), 1u);
  EXPECT_EQ(c.device_type_of_node(1), 0u);
  EXPECT_EQ(c.device_type_of(5), 2u);
  EXPECT_EQ(c.device_type_of(8), 0u);
  EXPECT_EQ(c.homogeneous(1).device.peak.f32.value, 4e12);
  EXPECT_EQ(c.homogeneous(1).links.inter.bandwidth.value, 0.5e9);
  EXPECT_EQ(c.homogeneous(2).device.peak.f32.value, 0.25e12);
  EXPECT_EQ(c.homogeneous(2).device.memory_bandwidth.value, 0.25e9);
  EXPECT_EQ(c.homogeneous(2).links.inter.bandwidth.value, 1e9);
  EXPECT_EQ(c.at_best().device.peak.f32.value, 4e12);
  const std::vector<int32_t> ranks = {0, 2, 4};
  EXPECT_EQ(c.shape(ranks).device_types, 0b111u);
  const std::vector<int32_t> some = {3, 9};
  EXPECT_EQ(c.shape(some).device_types, 0b001u);
  EXPECT_EQ(c.unsourced(),
            (std::vector<std::string>{"heterogeneous_nodes.1", "links.inter.bandwidth"}));

  const auto refused = [&](const std::string& entries) {
    return refusal(text + "heterogeneous_nodes:\n" + entries, "name: small", "name: small");
  };
  EXPECT_NE(refused("  - {first: 5}\n")
                .find("heterogeneous_nodes.0 has count 1 from node 5 on; expected nodes 0 to 4"),
            std::string::npos);
  EXPECT_NE(refused("  - {first: 3, count: 3}\n").find("heterogeneous_nodes.0 has count 3"),
            std::string::npos);
  EXPECT_NE(refused("  - {first: 2}\n  - {first: 2}\n")
                .find("heterogeneous_nodes.1 begins at node 2; expected at least 3"),
            std::string::npos);
  EXPECT_NE(refused("  - {first: 2, speed: 0}\n").find("0.001"), std::string::npos);
  EXPECT_NE(refused("  - {first: 2, cluster: none.yaml}\n").find("none.yaml"), std::string::npos);
}

TEST(Cluster, FormerNamesOfKeysAreRead) {
  const data::TempFolder temp;
  std::string text = kSmall;
  text += "unlike: [{first: 1, speed: 0.5}]\n";
  text.insert(text.find("  peak:"), "  several: [{ops: [swiglu], kernels: 2}]\n");
  const Cluster former = read_cluster(temp.add("former.yaml", text));
  ASSERT_EQ(former.heterogeneous_nodes.size(), 1U);
  EXPECT_EQ(former.heterogeneous_nodes[0].speed, 0.5);
  ASSERT_EQ(former.device.unfused_ops.size(), 1U);
  EXPECT_EQ(former.device.unfused_ops[0].kernels, 2);
  const std::string now = to_yaml(former);
  EXPECT_NE(now.find("heterogeneous_nodes:"), std::string::npos) << now;
  EXPECT_NE(now.find("unfused_ops:"), std::string::npos) << now;
}

TEST(Cluster, FormerSharesOf8BitsAreThoseOfTypes) {
  const std::string former =
      "  efficiency: {matmul_f8: {value: 0.5, source: s}, "
      "matmul_f8_by_flops: {source: s, size: [1e6], share: [0.25]}}\n  peak:";
  std::string text = kSmall;
  text.replace(text.find("  peak:"), 7, former);
  const Cluster c = parse_cluster(text, "former.yaml");
  EXPECT_FALSE(c.device.efficiency.has_former_shares());
  ASSERT_EQ(c.device.efficiency.of_types.size(), 1U);
  const TypedShares& shares = c.device.efficiency.of_types[0];
  EXPECT_EQ(shares.types, (std::vector<std::string>{"f8_e4m3", "f8_e5m2"}));
  EXPECT_EQ(shares.matmul.value, 0.5);
  EXPECT_EQ(shares.matmul_by_flops.share, std::vector<double>{0.25});
  EXPECT_EQ(to_yaml(parse_cluster(to_yaml(c), "again")), to_yaml(c));
  // Beside an entry of such a type, one of the two would have no effect.
  const std::string both = refusal(kSmall, "  peak:",
                                   "  efficiency: {matmul_f8: {value: 0.5}, of_types: [{types: "
                                   "[f8_e5m2], matmul: {value: 0.6}}]}\n  peak:");
  EXPECT_NE(both.find("of_types.0 has shares of f8_e5m2"), std::string::npos) << both;
  const std::string wrong =
      refusal(kSmall, "  peak:", "  efficiency: {matmul_f8: {value: 2}}\n  peak:");
  EXPECT_NE(wrong.find("device.efficiency.matmul_f8 is 2"), std::string::npos) << wrong;
}

TEST(Cluster, CyclesOfFilesAreRefused) {
  const data::TempFolder temp;
  std::string text = kSmall;
  const auto add = [&](const std::string& name, const std::string& other) {
    return temp.add(name, text + "heterogeneous_nodes: [{first: 1, cluster: " + other + "}]\n");
  };
  const auto refused = [](const std::string& path) {
    try {
      read_cluster(path);
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2);
      return std::string(e.what());
    }
    return std::string();
  };
  const std::string itself = refused(add("itself.yaml", "itself.yaml"));
  EXPECT_NE(itself.find("itself.yaml -> itself.yaml"), std::string::npos) << itself;
  add("b.yaml", "./c.yaml");
  add("c.yaml", "b.yaml");
  const std::string cycle = refused(add("a.yaml", "b.yaml"));
  EXPECT_NE(cycle.find("b.yaml -> c.yaml -> b.yaml"), std::string::npos) << cycle;
  // Two entries may name one file.
  temp.add("plain.yaml", text);
  read_cluster(
      temp.add("d.yaml", text + "heterogeneous_nodes: [{cluster: plain.yaml}, {first: 1, cluster: "
                                "plain.yaml}]\n"));
}

TEST(Cluster, FilesOfHeterogeneousNodesHaveLinksAndOneKindOfNodes) {
  const data::TempFolder temp;
  std::string one = kSmall;
  one.replace(one.find("nodes: 2"), 8, "nodes: 1");
  one.erase(one.find("  inter:"));
  temp.add("one.yaml", one);
  const std::string slower =
      std::string(kSmall) + "heterogeneous_nodes: [{first: 1, speed: 0.5}]\n";
  temp.add("two_kinds.yaml", slower);
  const auto refused = [&](const std::string& file) {
    const std::string entry = "heterogeneous_nodes: [{first: 1, cluster: " + file + "}]\n";
    try {
      read_cluster(temp.add("c.yaml", kSmall + entry));
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2);
      return std::string(e.what());
    }
    return std::string();
  };
  const std::string lacks = refused("one.yaml");
  EXPECT_NE(lacks.find("one.yaml, which lacks links.inter"), std::string::npos) << lacks;
  const std::string two = refused("two_kinds.yaml");
  EXPECT_NE(two.find("two_kinds.yaml, which has heterogeneous_nodes"), std::string::npos) << two;
}

TEST(Cluster, AtBestHasTheMostMemoryThatAPlanMayTake) {
  Cluster c = parse_cluster(kSmall, "small");
  c.device.reserve.context.value = 4e8;
  NodeGroup& other = c.heterogeneous_nodes.emplace_back();
  other.device = c.device;
  other.links = c.links;
  other.device.memory.value = 9e8;
  other.device.reserve = {};
  EXPECT_EQ(c.at_best().device.plannable(), 9e8);
  other.device.memory.value = 5e8;
  EXPECT_EQ(c.at_best().device.plannable(), 6e8);
}

TEST(Cluster, HugeSizesAreRefused) {
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  std::string huge = kSmall;
  huge.replace(huge.find("nodes: 2"), 8, "nodes: 4294967296");
  has(refusal(huge, "devices_per_node: 2", "devices_per_node: 4294967296"), "at most 16 M ranks");
  has(refusal(kSmall, "devices_per_node: 2", "devices_per_node: 2\ncores_per_node: 4294967296"),
      "at most 16 M");
  const std::string level =
      "topology: {levels: [{name: leaf, devices: 4294967296, oversubscription: {value: 2}}]}\n";
  has(refusal(kSmall + level, "name: small", "name: small"),
      "topology.levels.0.devices is 4294967296; expected at most 16 M");
}

/// YAML output parses to the same cluster, also where a constant is 1 without a source: for some
/// constants that is the default, for others it is not.
TEST(Cluster, YamlKeepsConstantsOfOne) {
  Cluster c = parse_cluster(
      std::string(kSmall) +
          "topology: {levels: [{name: leaf, devices: 4, oversubscription: {value: 1}}]}\n",
      "small");
  c.device.price.value = 1;
  c.device.float8.maxima.value = 1;
  c.device.float8.copies.value = 1;
  const std::string text = to_yaml(c);
  const Cluster again = parse_cluster(text, "again");
  EXPECT_EQ(again.topology.levels[0].oversubscription.value, 1);
  EXPECT_EQ(again.device.price.value, 1);
  EXPECT_EQ(again.device.float8.maxima.value, 1);
  EXPECT_EQ(again.device.float8.copies.value, 1);
  EXPECT_EQ(to_yaml(again), text);
}

TEST(Cluster, AtBestHasTheBestHostOfAllKinds) {
  Cluster c = parse_cluster(kSmall, "small");
  c.heterogeneous_nodes.emplace_back().device = c.device;
  c.heterogeneous_nodes[0].links = c.links;
  c.heterogeneous_nodes[0].device.host = {{2e9, ""}, {5e9, ""}, {10e-6, ""}};
  // A host with constants is better than one without.
  EXPECT_EQ(c.at_best().device.host.copy_latency.value, 10e-6);
  c.device.host = {{1e9, ""}, {6e9, ""}, {5e-6, ""}};
  const Host best = c.at_best().device.host;
  EXPECT_EQ(best.kernels.value, 2e9);
  EXPECT_EQ(best.copies.value, 6e9);
  EXPECT_EQ(best.copy_latency.value, 5e-6);
  c.heterogeneous_nodes[0].device.host = {};
  EXPECT_EQ(c.at_best().device.host.copy_latency.value, 5e-6);
}

TEST(Cluster, CountsThreadsAndDeviceTypesOfRanks) {
  Cluster c = parse_cluster(kSmall, "small");
  c.nodes = 3;
  c.devices_per_node = 4;
  c.cores_per_node = 8;
  EXPECT_EQ(c.threads_per_rank(3, 12), 3);
  EXPECT_EQ(c.threads_per_rank(0, 12), 2);
  EXPECT_EQ(c.threads_per_rank(0, 1), 8);
  c.cores_per_node = 0;
  EXPECT_EQ(c.threads_per_rank(0, 12), 1);
  NodeGroup& other = c.heterogeneous_nodes.emplace_back();
  other.first = 1;
  other.device.name = "e";
  EXPECT_EQ(c.ranks_of_device_types(7), (std::vector<int64_t>{4, 3}));
  EXPECT_EQ(c.ranks_of_device_types(12), (std::vector<int64_t>{8, 4}));
  EXPECT_EQ(c.device_names(4), "d");
  EXPECT_EQ(c.device_names(5), "d and e");
}

TEST(Cluster, ShapeOfAGroupFollowsItsPlacement) {
  Cluster c;
  c.nodes = 4;
  c.devices_per_node = 4;
  const auto shape = [&](std::vector<int32_t> ranks) { return c.shape(ranks); };
  EXPECT_EQ(shape({0, 1, 2}), (GroupShape{3, 1, 3}));
  EXPECT_EQ(shape({0, 4, 8}), (GroupShape{3, 3, 1}));
  EXPECT_EQ(shape({0, 1, 2, 4}), (GroupShape{4, 2, 1}));
  EXPECT_EQ(shape({2, 3, 4, 5}), (GroupShape{4, 2, 2}));
  EXPECT_EQ(shape({5, 1}), (GroupShape{2, 2, 1}));
}

}  // namespace
}  // namespace hocket::cost
