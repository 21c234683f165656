// SPDX-License-Identifier: Apache-2.0
// Durations against values derived by hand, the order of sources (timed, interpolated, analytic),
// profile files, and the α-β model against public nccl-tests measurements.
#include "cost/cost_model.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>

#include "base/error.h"
#include "tests/cluster_util.h"

namespace hocket::cost {
namespace {

using graph::DType;

/// Returns 4 nodes of 4 devices. Products reach half of the peak, attention a quarter; launches
/// take 1 us.
Cluster toy() {
  Cluster c = test::cluster_of(4, 4);
  c.name = "toy";
  c.device.name = "toy device";
  c.device.launch.value = 1e-6;
  c.device.peak.bf16.value = 8e12;
  c.device.efficiency = {{0.5, ""}, {0.25, ""}, {1, ""}};
  c.links.intra = test::link_of(1e-6, 10e9);
  c.links.inter = test::link_of(5e-6, 2e9, 0.5);
  return c;
}

Kind kind(const std::string& op, double flops, int64_t bytes, DType dtype = DType::f32) {
  Kind k;
  k.op = op;
  k.communication = comm::find(op);
  k.in = {{dtype, {bytes, int64_t(flops / 1000)}}};
  k.out = {{dtype, {4}}};
  k.flops = flops;
  k.bytes = bytes;
  return k;
}

TEST(CostModel, TakesTheSlowerOfArithmeticAndMemory) {
  const CostModel m(toy(), std::nullopt, 1);
  // 1 MFLOP at 0.5 TFLOP/s: 2 us, above 10 kB at 100 GB/s: 0.1 us; + 1 us launch.
  EXPECT_EQ(m.work(kind("linear", 1e6, 10000), 0).ns, 3000);
  // 1 MB at 100 GB/s: 10 us.
  EXPECT_EQ(m.work(kind("linear", 1e6, 1000000), 0).ns, 11000);
  // attention reaches a quarter: 4 us.
  EXPECT_EQ(m.work(kind("attention", 1e6, 10000), 0).ns, 5000);
  // bf16 products at 4 TFLOP/s: 0.25 us. Elementwise work stays at the f32 rate: 1 us.
  EXPECT_EQ(m.work(kind("linear", 1e6, 0, DType::bf16), 0).ns, 1250);
  EXPECT_EQ(m.work(kind("swiglu", 1e6, 0, DType::bf16), 0).ns, 2000);
  EXPECT_EQ(m.work(kind("linear", 1e6, 0), 0).provenance, Provenance::analytic);
  EXPECT_FALSE(m.calibrated());
}

TEST(CostModel, ProductsOf8BitsHaveAShareOfTheirOwn) {
  Cluster c = toy();
  c.device.peak.f8.value = 16e12;
  const auto ns = [&](DType dtype) {
    Kind product = kind("linear", 16e6, 0, dtype);
    product.in = {{dtype, {10, 10}}, {dtype, {10, 10}}};
    product.out = {{DType::bf16, {10, 10}}};
    return CostModel(c, std::nullopt, 1).work(product, 0).ns;
  };
  // 16 MFLOP at half of 16 TFLOP/s: 2 us, + 1 us launch; at a quarter: 4 us.
  EXPECT_EQ(ns(DType::f8_e4m3), 3000);
  c.device.efficiency.of_types = {{{"f8_e4m3", "f8_e5m2"}, {0.25, "s"}, {}}};
  EXPECT_EQ(ns(DType::f8_e4m3), 5000);
  EXPECT_EQ(ns(DType::f8_e5m2), 5000);
  EXPECT_EQ(ns(DType::bf16), 5000);
  c.device.efficiency.of_types[0].matmul_by_flops = {"s", {1e6}, {0.125}};
  EXPECT_EQ(ns(DType::f8_e4m3), 9000);
}

TEST(CostModel, TypesMayHaveSharesOfTheirOwn) {
  Cluster c = toy();
  const auto ns = [&](const char* op, DType dtype) {
    Kind task = kind(op, 16e6, 0, dtype);
    task.in = {{dtype, {10, 10}}, {dtype, {10, 10}}, {dtype, {10, 10}}};
    task.out = {{dtype, {10, 10}}};
    return CostModel(c, std::nullopt, 1).work(task, 0).ns;
  };
  const int64_t product = ns("linear", DType::bf16), attention = ns("attention", DType::bf16);
  c.device.efficiency.of_types = {{{"f16"}, {0.25, "s"}, {0.125, "s"}}};
  // 16 MFLOP at a quarter, and at an eighth, of 8 TFLOP/s, + 1 us launch.
  EXPECT_EQ(ns("linear", DType::f16), 9000);
  EXPECT_EQ(ns("attention", DType::f16), 17000);
  c.device.efficiency.of_types[0].matmul_by_flops = {"s", {1e6, 16e6}, {0.125, 0.5}};
  c.device.efficiency.of_types[0].attention_by_flops = {"s", {1e6}, {0.5}};
  EXPECT_EQ(ns("linear", DType::f16), 5000);
  EXPECT_EQ(ns("attention", DType::f16), 5000);
  EXPECT_EQ(ns("linear", DType::bf16), product);
  EXPECT_EQ(ns("attention", DType::bf16), attention);
  EXPECT_EQ(c.unsourced(), toy().unsourced());
  c.device.efficiency.of_types[0].types = {"f17"};
  EXPECT_THROW(c.validate("toy"), Error);
  c.device.efficiency.of_types[0].types = {"f16", "f16"};
  EXPECT_THROW(c.validate("toy"), Error);
  c.device.efficiency.of_types[0].types = {"i32"};
  EXPECT_THROW(c.validate("toy"), Error);
}

TEST(CostModel, NothingTakesLongerAtBest) {
  Cluster c = toy();
  c.nodes = 2;
  c.device.peak.f8.value = 16e12;
  c.device.efficiency.of_types = {{{"f8_e4m3", "f8_e5m2"}, {0.25, "s"}, {}}};
  NodeGroup other;
  other.device = c.device;
  other.links = c.links;
  other.device.efficiency.of_types = {{{"f8_e4m3", "f8_e5m2"}, {0.5, "s"}, {}},
                                      {{"bf16"}, {0.75, "s"}, {}}};
  c.heterogeneous_nodes = {other};
  for (const DType dtype : {DType::f8_e4m3, DType::bf16}) {
    Kind product = kind("linear", 16e6, 0, dtype);
    product.in = {{dtype, {10, 10}}, {dtype, {10, 10}}};
    product.out = {{DType::bf16, {10, 10}}};
    const int64_t best = CostModel(c.at_best(), std::nullopt, 1).work(product, 0).ns;
    for (size_t type = 0; type < c.num_device_types(); ++type) {
      EXPECT_LE(best, CostModel(c.homogeneous(type), std::nullopt, 1).work(product, 0).ns);
    }
  }
}

/// 1,000 tokens and 200 words: 200,000 logits of 50 bytes each take 100 us more at 100 GB/s.
TEST(CostModel, AnUnfusedLossMovesItsLogits) {
  Kind loss = kind("linear_cross_entropy", 1e6, 10000);
  loss.in = {{DType::bf16, {1000, 64}}, {DType::bf16, {200, 64}}};
  Cluster c = toy();
  const int64_t before = CostModel(c, std::nullopt, 1).work(loss, 0).ns;
  EXPECT_EQ(CostModel(c, std::nullopt, 1).logits_bytes(loss), 0);
  c.framework.logits = {{6, "s"}, {50, "s"}};
  const CostModel m(c, std::nullopt, 1);
  EXPECT_EQ(m.work(loss, 0).ns, before + 100000);
  EXPECT_EQ(m.logits_bytes(loss), 1200000);
  EXPECT_EQ(m.logits_bytes(kind("linear", 1e6, 10000)), 0);
}

/// 1,000 tokens and 200 words of a rank: 200,000 logits, in bf16 as their gradient.
TEST(CostModel, LogitsOfASplitVocabularyAreBeyondThoseOfThePlan) {
  Kind loss = kind("dlogits", 1e6, 10000);
  const graph::TensorType logits{DType::bf16, {1000, 200}};
  loss.in = {logits, {DType::i32, {1000}}, {DType::f64, {1000}}, {DType::f64, {1}}};
  loss.out = {logits};
  Cluster c = toy();
  const auto bytes = [&] { return CostModel(c, std::nullopt, 1).logits_bytes(loss); };
  EXPECT_EQ(bytes(), 0);
  c.framework.logits.memory = {14, "s"};
  EXPECT_EQ(bytes(), 200000 * (14 - 4));
  c.framework.logits.split_memory = {18, "s"};
  EXPECT_EQ(bytes(), 200000 * (18 - 4));
  c.framework.logits.split_memory = {2, "s"};
  EXPECT_EQ(bytes(), 0);
}

TEST(CostModel, AccumulationReadsItsOutput) {
  // 1 MB moved, and 0.4 MB more where the output is added to: 10 and 14 us.
  Kind linear_dw = kind("linear_dw", 0, 1000000);
  linear_dw.out = {{DType::f32, {100000}}};
  const CostModel m(toy(), std::nullopt, 1);
  EXPECT_EQ(m.work(linear_dw, 0).ns, 11000);
  EXPECT_EQ(m.work(linear_dw, 1).ns, 15000);
}

TEST(CostModel, Float8AddsTheCostOfScalesAndLayouts) {
  Cluster c = toy();
  c.device.peak.f8.value = 1e12;
  const graph::TensorType x{DType::bf16, {1000, 100}};
  const graph::TensorType x8{DType::f8_e4m3, {1000, 100}};
  const graph::TensorType w8{DType::f8_e4m3, {500, 100}};
  const graph::TensorType dy8{DType::f8_e4m3, {1000, 500}};
  Kind cast = kind("cast", 0, 300000);
  cast.in = {x};
  cast.out = {x8};
  const auto product = [](const char* op, graph::TensorType left, graph::TensorType right,
                          graph::TensorType made) {
    Kind k = kind(op, 0, 0);
    k.in = {left, right};
    k.out = {made};
    return k;
  };
  const Kind forward = product("linear", x8, w8, {DType::bf16, {1000, 500}});
  const Kind dx = product("linear_dx", dy8, w8, x);
  const Kind dw = product("linear_dw", dy8, x8, {DType::f32, {500, 100}});
  for (const bool scaled : {false, true}) {
    c.device.float8.maxima.value = scaled ? 1 : 0;
    c.device.float8.copies.value = scaled ? 1 : 0;
    const CostModel m(c, std::nullopt, 1);
    // 3 us, and the read for the maximum, 2 more; + 1 us launch.
    EXPECT_EQ(m.work(cast, 0).ns, scaled ? 6000 : 4000);
    // The product reduces over the last dim of both; dx over the first of the weight, which is read
    // and written anew; dw over the first of both.
    EXPECT_EQ(m.work(forward, 0).ns, 1000);
    EXPECT_EQ(m.work(dx, 0).ns, scaled ? 2000 : 1000);
    EXPECT_EQ(m.work(dw, 0).ns, scaled ? 13000 : 1000);
  }
}

TEST(CostModel, EveryExpertIsLaunchedSeparately) {
  Cluster c = toy();
  c.device.host_launch_expert.value = 10e-6;
  const CostModel m(c, std::nullopt, 1);
  Kind grouped = kind("grouped_linear", 1e6, 0);
  grouped.in = {{DType::f32, {16, 64, 8}, 2}, {DType::f32, {16, 4, 8}}};
  EXPECT_EQ(m.more_launches_ns(grouped), 160000);
  EXPECT_EQ(m.more_launches_ns(kind("linear", 1e6, 0)), 0);
  grouped.op = "swiglu";
  EXPECT_EQ(m.more_launches_ns(grouped), 0);
}

TEST(CostModel, UnfusedOpsLaunchSeveralKernels) {
  Cluster c = toy();
  Kind added = kind("sumexp", 0, 100000);
  added.out = {{DType::f32, {25, 1000}}};
  const CostModel one(c, std::nullopt, 1);
  const int64_t launch = 1000;
  const int64_t moves = one.work(added, 0).ns - launch;
  const int64_t adds = one.work(added, 1).ns - launch - moves;
  c.device.unfused_ops = {{{"rowmax", "sumexp"}, 4, 14, "s"}};
  c.validate("toy");
  const CostModel m(c, std::nullopt, 1);
  // Four launches and 14 times the bytes; the accumulated output is read once.
  EXPECT_EQ(m.work(added, 0).ns, 14 * moves + 4 * launch);
  EXPECT_EQ(m.work(added, 1).ns, 14 * moves + adds + 4 * launch);
  EXPECT_EQ(m.work(kind("swiglu", 0, 100000), 0).ns, one.work(kind("swiglu", 0, 100000), 0).ns);
  c.device.host_reads = {{"nll", "send", "recv"}, "s"};
  c.validate("toy");
  const CostModel reads(c, std::nullopt, 1);
  EXPECT_TRUE(reads.host_reads(kind("nll", 0, 1)));
  EXPECT_FALSE(reads.host_reads(kind("sumexp", 0, 1)));
  EXPECT_FALSE(m.host_reads(kind("nll", 0, 1)));
  // Written and parsed; the bound over all nodes is not above the time of any node.
  c.device.memory_bandwidth.source = c.name;
  EXPECT_EQ(to_yaml(parse_cluster(to_yaml(c), "again")), to_yaml(c));
  Cluster mixed = c;
  mixed.heterogeneous_nodes.emplace_back().device = toy().device;
  mixed.heterogeneous_nodes[0].links = toy().links;
  EXPECT_EQ(CostModel(mixed.at_best(), std::nullopt, 1).work(added, 0).ns, moves + launch);
  const auto refused = [&](std::vector<UnfusedOps> unfused, HostReads host_reads) {
    Cluster bad = toy();
    bad.device.unfused_ops = std::move(unfused);
    bad.device.host_reads = std::move(host_reads);
    EXPECT_THROW(bad.validate("toy"), Error);
  };
  refused({{{"no_such_op"}, 2, 1, "s"}}, {});
  refused({{{"sumexp"}, 2, 1, "s"}, {{"sumexp"}, 3, 1, "s"}}, {});
  refused({{{"sumexp"}, 2, 1e9, "s"}}, {});
  refused({{{"send"}, 2, 1, "s"}}, {});
  refused({}, {{"no_such_op"}, "s"});
  refused({}, {{"all_reduce"}, "s"});
}

/// Measurements of one kind of devices do not apply to a faster kind with another cluster file:
/// neither rates and links, nor the fraction of the roofline that kernels reach.
TEST(CostModel, ProfilesDoNotBoundFasterNodes) {
  Cluster fast = toy();
  fast.device.name = "fast device";
  fast.device.peak.f32.value *= 10;
  fast.device.memory_bandwidth.value *= 10;
  fast.links.intra.bandwidth.value *= 10;
  Cluster mixed = toy();
  mixed.heterogeneous_nodes.emplace_back().cluster = "fast.yaml";
  mixed.heterogeneous_nodes[0].device = fast.device;
  mixed.heterogeneous_nodes[0].links = fast.links;
  Profile profile;
  profile.device = "toy device";
  profile.memory_bytes_per_s = 90e9;
  profile.peak_flops = {{"f32", 0.9e12}};
  profile.links["intra"] = {2000, 5e9};
  // A task that took twice its roofline of 2 us lowers no bound.
  profile.tasks.push_back({"a product", "linear", "f32", 0.9e6, 1000, 4000});
  const CostModel all(mixed, profile, 1);
  const CostModel best = all.at_best();
  EXPECT_TRUE(best.calibrated());
  const CostModel alone(fast, std::nullopt, 1);
  for (const int64_t bytes : {int64_t{10}, int64_t{1} << 30}) {
    EXPECT_EQ(best.roofline_s("linear", DType::f32, 1e9, bytes),
              alone.roofline_s("linear", DType::f32, 1e9, bytes));
    EXPECT_EQ(all.of_device_type(1).roofline_s("linear", DType::f32, 1e9, bytes),
              alone.roofline_s("linear", DType::f32, 1e9, bytes));
  }
  const GroupShape pair{2, 1, 2};
  const comm::Op& send = comm::op(comm::find("send"));
  EXPECT_LE(best.algorithm_times(send, 1e6, false, pair).front().seconds(),
            alone.algorithm_times(send, 1e6, false, pair).front().seconds());
  EXPECT_EQ(best.fastest_share(), 1);
  // If the slow kind's kernels are faster than their roofline, that fraction applies to all.
  profile.tasks[0].ns = 1000;
  const double share = CostModel(toy(), profile, 1).fastest_share();
  EXPECT_LT(share, 1);
  EXPECT_EQ(CostModel(mixed, profile, 1).at_best().fastest_share(), share);
  // The profile applies in full to the same devices at another speed.
  mixed.heterogeneous_nodes[0].cluster = "";
  mixed.heterogeneous_nodes[0].device.name = "toy device";
  mixed.heterogeneous_nodes[0].speed = 10;
  EXPECT_DOUBLE_EQ(CostModel(mixed, profile, 1).at_best().roofline_s("linear", DType::f32, 9e9, 10),
                   9e9 / (0.5 * 9e12));
}

TEST(CostModel, NumbersWithoutTheirUnitAreRefused) {
  const auto refused = [](const std::function<void(Cluster*)>& change) {
    Cluster bad = toy();
    change(&bad);
    EXPECT_THROW(bad.validate("toy"), Error);
  };
  toy().validate("toy");
  refused([](Cluster* c) { c->links.intra.latency.value = 2; });
  refused([](Cluster* c) { c->links.intra.bandwidth.value = 450; });
  refused([](Cluster* c) { c->device.memory.value = 80; });
  refused([](Cluster* c) { c->device.memory_bandwidth.value = 2; });
  refused([](Cluster* c) { c->device.peak.f32.value = 67; });
  refused([](Cluster* c) { c->device.host_launch.value = 10; });
}

TEST(CostModel, EfficiencyFollowsTheSizeOfAKernel) {
  Cluster c = toy();
  c.device.efficiency.matmul_by_flops = {"s", {1e6, 1e8}, {0.1, 0.5}};
  c.device.efficiency.memory_by_bytes = {"s", {1e6}, {0.5}};
  c.validate("toy");
  const CostModel m(c, std::nullopt, 1);
  // A tenth of 1 TFLOP/s up to 1 MFLOP, 0.3 at 10, half from 100 on; + 1 us launch.
  EXPECT_EQ(m.work(kind("linear", 1e6, 0), 0).ns, 11000);
  EXPECT_EQ(m.work(kind("linear", 1e7, 0), 0).ns, 34333);
  EXPECT_EQ(m.work(kind("linear", 1e9, 0), 0).ns, 2001000);
  EXPECT_EQ(m.work(kind("swiglu", 0, 1000000), 0).ns, 21000);
  // Written, parsed, and refused if invalid.
  c.device.memory_bandwidth.source = c.name;
  EXPECT_EQ(to_yaml(parse_cluster(to_yaml(c), "again")), to_yaml(c));
  c.device.efficiency.matmul_by_flops.share = {0.1};
  EXPECT_THROW(c.validate("toy"), Error);
  c.device.efficiency.matmul_by_flops.share = {0.1, 1.5};
  EXPECT_THROW(c.validate("toy"), Error);
}

TEST(CostModel, ThreadsOfARankScaleItsSpeed) {
  Cluster c = toy();
  c.cores_per_node = 8;
  const CostModel m(c, std::nullopt, 4);
  EXPECT_EQ(m.work(kind("linear", 1e6, 10000), 0).ns, 1500);  // 2 us / 4 + launch
}

TEST(CostModel, HostTasksAndCopiesTakeTheHostsRates) {
  using program::Lane;
  Cluster c = toy();
  const Kind encode = kind("encode_int8", 0, 5'000'000);
  const Kind copy{
      .op = "copy", .attrs = {}, .in = {{DType::f32, {1000}}}, .out = {{DType::f32, {1000}}}};
  // Missing constants of the host are an error.
  EXPECT_THROW(CostModel(c, std::nullopt, 1).work(encode, 0, 0, Lane::host), Error);
  c.device.host = {{2e9, ""}, {4e9, ""}, {10e-6, ""}};
  const CostModel m(c, std::nullopt, 1);
  EXPECT_EQ(m.work(encode, 0, 0, Lane::host).ns, 2'500'000);
  EXPECT_EQ(m.work(copy, 0, 0, Lane::d2h).ns, 10'000 + 1'000);
  EXPECT_EQ(m.work(encode, 0).ns, 51'000);
  // If ranks are threads, they compute on the host.
  c.device.host = {};
  c.cores_per_node = 4;
  const CostModel threads(c, std::nullopt, 1);
  EXPECT_EQ(threads.work(encode, 0, 0, Lane::host).ns, threads.work(encode, 0).ns);
}

TEST(CostModel, CollectivesTakeTheTimesOfTheirAlgorithms) {
  const CostModel m(toy(), std::nullopt, 1);
  const GroupShape four{4, 1, 4}, far{4, 4, 1}, wide{8, 2, 4};
  const auto ns = [&](const char* op, int64_t bytes, const GroupShape& s, bool inter = false) {
    return m.transfer(kind(op, 0, bytes), 0, inter, s).ns;
  };
  // 1 MB on 10 GB/s is 100 us. Ring over 4: 2 x 3 steps of 1 us + 1.5 x 100 us.
  EXPECT_EQ(ns("all_reduce", 1000000, four), 156000);
  // Small: a tree of 2 x 2 steps beats the ring's 6: 4 us + 2 x 0.1 ns.
  EXPECT_EQ(ns("all_reduce", 1, four), 4000);
  EXPECT_EQ(ns("all_gather", 1000000, four), 3000 + 75000);
  EXPECT_EQ(ns("reduce_scatter", 1000000, four), 3000 + 75000);
  EXPECT_EQ(ns("all_to_all", 1000000, four), 1000 + 75000);
  EXPECT_EQ(ns("send", 1000000, {2, 1, 2}), 1000 + 100000);
  EXPECT_EQ(ns("size_exchange", 100, four), 1000 + 30);
  // Across nodes: 5 us, 1 GB/s reached.
  EXPECT_EQ(ns("all_gather", 1000000, far), 15000 + 750000);
  EXPECT_EQ(ns("send", 1000000, {2, 2, 1}), 5000 + 1000000);
  // Four members on each node: a ring can use four adapters: 4 GB/s. Of 8 hops 2 leave a node.
  EXPECT_EQ(ns("all_gather", 1000000, wide), 7 * (2 * 5000 + 6 * 1000) / 8 + 218750);
  // All-to-all over 2 nodes of 4: 4/8 leave the node at 1 GB/s, 3/8 stay: the slower counts.
  EXPECT_EQ(ns("all_to_all", 1000000, wide), 5000 + 500000);
  // A send in a network lane takes the time of the network, even between ranks of one node.
  EXPECT_EQ(ns("send", 1000000, {2, 1, 2}, true), 5000 + 1000000);
  // A group of one exchanges nothing.
  EXPECT_EQ(ns("all_reduce", 1000000, {1, 1, 1}), 0);
  EXPECT_THROW(ns("broadcast", 1, four), Error);
}

TEST(CostModel, ATransferLoadsLinksByItsShareOfTheirBandwidth) {
  const CostModel m(toy(), std::nullopt, 1);
  // 10 MB to another node: 5 us, then 10 ms of all that an adapter carries.
  const GroupShape pair{2, 2, 1};
  LinkLoad load = m.load(kind("send", 0, 10'000'000), true, pair);
  EXPECT_NEAR(load.data, 10e-3 / (10e-3 + 5e-6), 1e-12);
  EXPECT_DOUBLE_EQ(load.share[1], 1);
  EXPECT_DOUBLE_EQ(load.share[0], 0);
  // A ring over 2 nodes of 4: every device passes all bytes on at up to 10 GB/s, and the four
  // adapters of a node a quarter each at 1 GB/s: 4 GB/s, two fifths of a device's rate.
  load = m.load(kind("all_gather", 0, 100'000'000), true, {8, 2, 4});
  EXPECT_DOUBLE_EQ(load.share[1], 1);
  EXPECT_DOUBLE_EQ(load.share[0], 0.4);
  // A group of one loads no link.
  EXPECT_EQ(m.load(kind("all_gather", 0, 1000), true, {1, 1, 1}).data, 0);
}

/// Our own collectives between processes exchange directly, even where a ring would be faster.
TEST(CostModel, ProcessesExchangeDirectly) {
  const CostModel m(toy(), std::nullopt, 1, comm::Collectives::own);
  const GroupShape four{4, 1, 4}, wide{8, 2, 4};
  const auto ns = [&](const char* op, int64_t bytes, const GroupShape& s) {
    return m.transfer(kind(op, 0, bytes), 0, false, s).ns;
  };
  EXPECT_EQ(ns("all_reduce", 1000000, four), 2000 + 150000);
  EXPECT_EQ(ns("all_reduce", 1, four), 2000);
  EXPECT_EQ(ns("all_gather", 1000000, four), 1000 + 75000);
  EXPECT_EQ(ns("size_exchange", 100, four), 1000 + 30);
  EXPECT_EQ(ns("send", 1000000, {2, 1, 2}), 1000 + 100000);
  // Over 2 nodes of 4, to 4 of the 7 others over the network: a ring would take 4 x that link.
  EXPECT_EQ(ns("all_gather", 1000000, wide), 5000 + 500000);
  const CostModel c10d(toy(), std::nullopt, 1, comm::Collectives::c10d);
  EXPECT_EQ(c10d.transfer(kind("all_reduce", 0, 1000000), 0, false, four).ns, 156000);
}

Profile sample_profile() {
  Profile p;
  p.machine = {{"cpu", "toy \"1\""}};
  p.cores = 2;
  p.threads = 2;
  p.task_overhead_ns = 100;
  p.memory_bytes_per_s = 34e9;
  p.peak_flops = {{"f32", 2e12}};
  p.links["intra"] = {2000, 5e9};
  const auto add = [&](const Kind& k, int64_t ns) {
    p.tasks.push_back({kind_key(k, 0), k.op, "f32", k.flops, k.bytes, ns, 0.02});
  };
  add(kind("linear", 1e9, 1000), 2000000);
  add(kind("linear", 4e9, 1000), 6000000);
  add(kind("linear", 16e9, 1000), 20000000);
  return p;
}

TEST(CostModel, PrefersTimedThenInterpolatedThenRoofline) {
  Profile of_toy = sample_profile();
  of_toy.device = "toy device";
  const CostModel m(toy(), of_toy, 2);
  EXPECT_TRUE(m.calibrated());
  TaskCost c = m.work(kind("linear", 4e9, 1000), 0);
  EXPECT_EQ(c.ns, 6000000 + 100);
  EXPECT_EQ(c.provenance, Provenance::timed);
  // Halfway in log between 1 and 4 GFLOP: sqrt(2 x 6) = 3.4641 ms.
  c = m.work(kind("linear", 2e9, 1000), 0);
  EXPECT_NEAR(double(c.ns), std::sqrt(12.0) * 1e6 + 100, 1);
  EXPECT_EQ(c.provenance, Provenance::interpolated);
  // A quarter of the way, nearer to the smaller one: 2 ms x 3^(1/4).
  c = m.work(kind("linear", 1e9 * std::sqrt(2.0), 1000), 0);
  EXPECT_NEAR(double(c.ns), 2e6 * std::pow(3.0, 0.25) + 100, 1);
  // Three quarters of the way between 4 and 16 GFLOP: 6 ms x (10/3)^(3/4).
  c = m.work(kind("linear", 4e9 * std::pow(4.0, 0.75), 1000), 0);
  EXPECT_NEAR(double(c.ns), 6e6 * std::pow(10.0 / 3, 0.75) + 100, 1);
  // Outside: proportional from the nearest.
  EXPECT_NEAR(double(m.work(kind("linear", 0.5e9, 1000), 0).ns), 1e6 + 100, 1);
  EXPECT_NEAR(double(m.work(kind("linear", 32e9, 1000), 0).ns), 40e6 + 100, 1);
  // The accumulating form was not timed; another element type is another kernel.
  EXPECT_EQ(m.work(kind("linear", 4e9, 1000), 1).provenance, Provenance::interpolated);
  EXPECT_EQ(m.work(kind("linear", 4e9, 1000, DType::bf16), 0).provenance, Provenance::analytic);
  EXPECT_EQ(m.work(kind("rope", 4e9, 1000), 0).provenance, Provenance::analytic);
  // The link was fitted: 2 us + 1 MB / 5 GB/s, + 100 ns.
  c = m.transfer(kind("send", 0, 1000000), 0, false, {2, 1, 2});
  EXPECT_EQ(c.ns, 202100);
  EXPECT_EQ(c.provenance, Provenance::interpolated);
  EXPECT_EQ(m.transfer(kind("send", 0, 1000000), 0, false, {2, 2, 1}).provenance,
            Provenance::analytic);
}

TEST(CostModel, ProfileReplacesConstantsOfTheCluster) {
  Cluster c = toy();
  c.cores_per_node = 64;
  Profile p = sample_profile();
  p.tasks.clear();
  const CostModel m(c, p, 2);
  EXPECT_EQ(m.cluster().cores_per_node, 2);
  // 34 GB/s for a rank of 2 threads: 34 kB take 1 us, + launch + overhead.
  EXPECT_EQ(m.work(kind("rope", 0, 34000), 0).ns, 1000 + 1000 + 100);
  EXPECT_EQ(m.cluster().peak_flops(DType::f32), 1e12);  // per core
}

TEST(CostModel, ProfilesOfOtherDevicesAreRefused) {
  const Profile cpu = sample_profile();
  EXPECT_EQ(mismatch(cpu, toy()), "was timed on a cpu (toy \"1\"), but toy computes on toy device");
  EXPECT_THROW(CostModel(toy(), cpu, 2), Error);
  Cluster threads = toy();
  threads.cores_per_node = 4;
  EXPECT_EQ(mismatch(cpu, threads), "");
  Profile other = cpu;
  other.device = "toy device";
  EXPECT_EQ(mismatch(other, toy()), "");
  EXPECT_NE(mismatch(other, threads), "");
  // Profiles without the key `device`, from earlier versions, are of a cpu.
  std::string text = to_json(cpu);
  const std::string said = "\"device\": \"cpu\",";
  ASSERT_NE(text.find(said), text.npos) << text;
  text.erase(text.find(said), said.size());
  EXPECT_EQ(parse_profile(text, "p.json").device, "cpu");
}

TEST(Profile, RoundTripsThroughJson) {
  const Profile p = sample_profile();
  const std::string text = to_json(p);
  const Profile q = parse_profile(text, "p.json");
  EXPECT_EQ(q.device, "cpu");
  EXPECT_EQ(q.machine, p.machine);
  EXPECT_EQ(q.tasks, p.tasks);
  EXPECT_EQ(q.links, p.links);
  EXPECT_EQ(q.peak_flops, p.peak_flops);
  EXPECT_EQ(to_json(q), text);
}

TEST(Profile, FormerNamesOfKeysAreRead) {
  Profile now = sample_profile();
  now.links["intra"].compute_slowdown = 1.25;
  now.links["intra"].collective_slowdown = 1.5;
  std::string text = to_json(now);
  EXPECT_EQ(parse_profile(text, "p.json").links, now.links);
  for (const auto& [name, former] :
       {std::pair<std::string, std::string>{"compute_slowdown", "work_beside"},
        {"collective_slowdown", "collective_beside"}}) {
    ASSERT_NE(text.find(name), text.npos) << text;
    text.replace(text.find(name), name.size(), former);
  }
  EXPECT_EQ(parse_profile(text, "p.json").links, now.links);
  const std::string less = "\"work_beside\": 1.25";
  text.replace(text.find(less), less.size(), "\"work_beside\": 0.5");
  EXPECT_THROW(parse_profile(text, "p.json"), Error);
}

TEST(Profile, RoutedWorkTakesTheTimeOfTheBusiestRank) {
  Profile profile;
  profile.links["intra"] = {.latency_ns = 0, .bytes_per_s = 1e9};
  // Two ranks have two experts each. One gets 3/4 of the rows in one layer and half in the
  // other.
  profile.routing = {{5, 1, 1, 1}, {2, 2, 1, 3}};
  EXPECT_EQ(busiest(profile, 2), (1.5 + 1) / 2);
  EXPECT_EQ(busiest(profile, 1), (2.5 + 1.5) / 2);
  EXPECT_EQ(busiest(profile, 4), 1);
  EXPECT_EQ(busiest(Profile(), 2), 1);
  EXPECT_EQ(parse_profile(to_json(profile), "p").routing, profile.routing);

  Kind rows;
  rows.op = "swiglu";
  rows.in = {{graph::DType::f32, {2, 8, 16}, 2}};
  rows.bytes = 1000000;
  Kind dense = rows;
  dense.in = {{graph::DType::f32, {8, 16}}};
  profile.device = toy().device.name;
  const CostModel uneven(toy(), profile, 1);
  profile.routing.clear();
  const CostModel even(toy(), profile, 1);
  EXPECT_EQ(uneven.work(dense, 0).ns, even.work(dense, 0).ns);
  EXPECT_NEAR(static_cast<double>(uneven.work(rows, 0).ns),
              1.25 * static_cast<double>(even.work(rows, 0).ns), 2);
}

TEST(Profile, InvalidFilesAreRefused) {
  const auto refused = [](std::string from, std::string to) {
    std::string text = to_json(sample_profile());
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    text.replace(at, from.size(), to);
    try {
      parse_profile(text, "p.json");
      ADD_FAILURE() << from << " -> " << to << " was read";
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2);
      EXPECT_NE(std::string(e.what()).find("p.json"), std::string::npos) << e.what();
    }
  };
  refused("hocket-profile-1", "hocket-profile-9");
  refused("\"ns\": 2000000", "\"ns\": -5");
  refused("\"ns\": 2000000", "\"ns\": \"x\"");
  refused("\"ns\": 2000000", "\"ns\": 9223372036854775000");
  refused("\"task_overhead_ns\": ", "\"task_overhead_ns\": 92233720368547758");
  refused("\"intra\"", "\"moon\"");
  refused("\"bytes_per_s\": 5000000000", "\"bytes_per_s\": 0");
  refused("\"f32\"", "\"f3\"");
  refused("\"tasks\"", "\"task\"");
  refused("\"dtype\": \"f32\"", "\"dtype\": \"i64\"");
  const std::string whole = to_json(sample_profile());
  for (size_t n = 0; n + 2 < whole.size(); n += 37) {
    EXPECT_THROW(parse_profile(whole.substr(0, n), "p.json"), Error) << n;
  }
}

TEST(Profile, ListsEachDistinctTaskOfAProgramOnce) {
  program::Program p;
  p.roles = {{"all", {{{"pp", 2}}}}};
  const auto a = p.intern(kind("linear", 1e6, 100));
  const auto b = p.intern(kind("rope", 0, 100));
  const auto s = p.intern(kind("send", 0, 100));
  p.classes.resize(2);
  const auto add = [&](size_t c, program::KindId k, uint32_t accumulate) {
    program::Task t;
    t.kind = k;
    t.accumulate = program::OutputSet::of_bits(accumulate);
    p.classes[c].tasks.push_back(t);
  };
  add(0, a, 0);
  add(0, a, 1);
  add(0, s, 0);
  add(1, b, 0);
  add(1, a, 0);
  add(1, a, 0);
  const auto targets = distinct_tasks(p);
  ASSERT_EQ(targets.size(), 3u);
  EXPECT_EQ(targets[0].kind, a);
  EXPECT_EQ(targets[0].count, 2);  // class 1 runs it twice
  EXPECT_EQ(targets[1].accumulate, 1u);
  EXPECT_NE(targets[0].key, targets[1].key);
  EXPECT_EQ(targets[2].kind, b);
  EXPECT_EQ(targets[2].cls, 1);
}

/// Times of nccl-tests all_reduce (in place, f32) on A100 SXM4 40GB, Azure ND A100 v4, from the
/// logs of github.com/NetX-lab/Echo (MIT): {ranks, bytes, microseconds}.
struct Measured {
  int32_t ranks;
  int64_t bytes;
  double us;
};
constexpr Measured kA100[] = {
    {2, 1 << 26, 388.7}, {2, 1 << 30, 5183.1}, {4, 1 << 26, 517.8},   {4, 1 << 30, 7169.6},
    {8, 1 << 26, 568.1}, {8, 1 << 30, 8139.6}, {16, 1 << 26, 1141.9}, {16, 1 << 30, 16166.0},
};

TEST(CostModel, ShippedA100LinksAgreeWithPublicMeasurements) {
  const char* root = std::getenv("HOCKET_SOURCE_DIR");
  const Cluster c =
      read_cluster(std::string(root ? root : ".") + "/configs/clusters/a100-16x8.yaml");
  const CostModel m(c, std::nullopt, 1);
  double sum = 0;
  for (const Measured& x : kA100) {
    std::vector<int32_t> ranks;
    for (int32_t r = 0; r < x.ranks; ++r) {
      ranks.push_back(r);
    }
    const double us =
        double(m.transfer(kind("all_reduce", 0, x.bytes), 0, false, c.shape(ranks)).ns) * 1e-3;
    EXPECT_NEAR(us / x.us, 1, 0.25) << x.ranks << " ranks, " << x.bytes << " bytes";
    sum += std::abs(us / x.us - 1);
  }
  EXPECT_LE(sum / std::size(kA100), 0.10);
}

}  // namespace
}  // namespace hocket::cost
