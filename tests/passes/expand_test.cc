// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Collectives written as messages give the results of their records, on any number of ranks, for
// any sizes, types and lists; all ranks get the same bits.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <iostream>
#include <map>

#include "base/rng.h"
#include "cost/cost_model.h"
#include "kernels/backend.h"
#include "passes/finish.h"
#include "passes/pass.h"
#include "runtime/local_ranks.h"
#include "sim/simulator.h"
#include "tests/check/check_util.h"
#include "tests/cluster_util.h"
#include "tests/compare_util.h"
#include "tests/programs/program_builder_util.h"

namespace hocket::passes {
namespace {

using graph::DType;
using graph::TensorType;
using program::BufferId;
using program::BufferKind;
using program::Program;

/// One collective among all ranks of a mesh, of inputs into outputs.
struct Collective {
  std::string op;
  graph::Attrs attrs;
  std::vector<graph::Axis> axes;
  std::vector<TensorType> in;
  bool in_place = false;

  std::string name() const {
    std::string text = op + " over " + to_string(graph::Mesh{axes}) + (in_place ? " in place" : "");
    for (const TensorType& type : in) {
      text += " " + to_string(type);
    }
    return text;
  }
};

Program program_of(const Collective& made) {
  Program program;
  program.config = "{}";
  program.roles[0].mesh.axes = made.axes;
  program.classes.resize(1);
  program::RankClass& cls = program.classes[0];
  cls.name = "all";
  const auto add = [&](BufferKind kind, const std::string& name, const TensorType& type) {
    program::Buffer buffer;
    buffer.kind = kind;
    buffer.name = name;
    buffer.type = type;
    cls.buffers.push_back(buffer);
    return BufferId(cls.buffers.size() - 1);
  };
  const auto task = [&](const std::string& op, const graph::Attrs& attrs,
                        const std::vector<BufferId>& in, const std::vector<BufferId>& out) {
    program::Kind kind;
    kind.op = op;
    kind.attrs = attrs;
    for (BufferId id : in) {
      kind.in.push_back(cls.buffers[id].type);
    }
    for (BufferId id : out) {
      kind.out.push_back(cls.buffers[id].type);
    }
    program::Task added;
    added.kind = program.intern(std::move(kind));
    added.in = in;
    added.out = out;
    cls.tasks.push_back(added);
  };
  const std::vector<TensorType> types =
      comm::infer(comm::op(comm::find(made.op)), made.attrs, made.in, program.num_ranks());
  std::vector<BufferId> in, out, fed;
  for (size_t i = 0; i < made.in.size(); ++i) {
    fed.push_back(add(BufferKind::input, "in" + std::to_string(i), made.in[i]));
    in.push_back(made.in_place ? add(BufferKind::step, "", made.in[i]) : fed[i]);
  }
  for (size_t i = 0; i < types.size(); ++i) {
    out.push_back(add(BufferKind::output, "out" + std::to_string(i), types[i]));
  }
  if (made.in_place) {
    for (size_t i = 0; i < in.size(); ++i) {
      task("copy", {}, {fed[i]}, {in[i]});
    }
  }
  task(made.op, made.attrs, in, made.in_place ? in : out);
  std::vector<int32_t> axes;
  for (size_t axis = 0; axis < made.axes.size(); ++axis) {
    axes.push_back(static_cast<int32_t>(axis));
  }
  cls.tasks.back().group = program.intern(program::group_over(axes));
  if (made.in_place) {
    for (size_t i = 0; i < in.size(); ++i) {
      task("copy", {}, {in[i]}, {out[i]});
    }
  }
  return program;
}

/// Small whole numbers (their sums are exact in any order), or numbers that round.
void fill(const TensorType& type, bool whole, Rng& rng, void* to) {
  for (int64_t i = 0; i < type.numel(); ++i) {
    const auto number = static_cast<int64_t>(rng.below(2001)) - 1000;
    const double value = whole ? static_cast<double>(number) : rng.normal();
    if (type.dtype == DType::i64) {
      static_cast<int64_t*>(to)[i] = number;
    } else if (type.dtype == DType::f64) {
      static_cast<double*>(to)[i] = value;
    } else {
      static_cast<float*>(to)[i] = static_cast<float>(value);
    }
  }
}

/// The bytes of every output, by rank.
std::vector<std::vector<std::string>> run(const Program& program, bool whole, uint64_t seed) {
  runtime::RankOptions options;
  options.timeout = std::chrono::milliseconds(5000);
  options.poison = true;
  runtime::LocalRanks ranks(program.num_ranks(), kernels::cpu_backend(), options);
  runtime::LocalRun local(std::make_shared<const Program>(program), runtime::Store(ranks));
  const std::vector<program::Buffer>& buffers = program.classes[0].buffers;
  Rng rng(seed);
  for (int32_t rank : ranks.ids()) {
    for (const program::Buffer& buffer : buffers) {
      if (buffer.kind == BufferKind::input) {
        fill(buffer.type, whole, rng, local.executor(rank).input(buffer.name));
      }
    }
  }
  local.step();
  std::vector<std::vector<std::string>> results;
  for (int32_t rank : ranks.ids()) {
    results.emplace_back();
    for (const program::Buffer& buffer : buffers) {
      if (buffer.kind != BufferKind::output) continue;
      const void* const data = local.executor(rank).output(buffer.name);
      results.back().emplace_back(static_cast<const char*>(data),
                                  static_cast<size_t>(buffer.type.bytes()));
    }
  }
  return results;
}

int count(const Program& program, const std::string& op) {
  const auto& tasks = program.classes[0].tasks;
  return static_cast<int>(std::count_if(
      tasks.begin(), tasks.end(), [&](const auto& task) { return program.kind(task).op == op; }));
}

/// Returns the bytes that one rank sends.
int64_t bytes_sent(const Program& program, program::Lane lane) {
  int64_t bytes = 0;
  for (const program::Task& task : program.classes[0].tasks) {
    bytes += program.kind(task).op == "send" && task.lane == lane ? program.kind(task).bytes : 0;
  }
  return bytes;
}

std::vector<std::vector<graph::Axis>> meshes() {
  std::vector<std::vector<graph::Axis>> list;
  for (int32_t n = 2; n <= (test::is_sanitized() ? 4 : 8); ++n) {
    list.push_back({{"a", n}});
  }
  list.push_back({{"a", 2}, {"b", 2}});
  list.push_back({{"a", 2}, {"b", 3}});
  list.push_back({{"a", 4}, {"b", 3}});
  list.push_back({{"a", 3}, {"b", 1}, {"c", 2}});
  list.push_back({{"a", 2}, {"b", 4}});
  return list;
}

Program expanded(const Program& native, const std::string& setting) {
  Program made = native;
  PassRunner({"expand"}, {}, PassOptions({setting})).run(made);
  finish(made, "expanded");
  return made;
}

/// The bits of the record for whole numbers; of sums and maxima the same bits on all ranks.
void expect_equal(const Collective& made, const std::string& setting, int32_t ranks_per_node = 0) {
  SCOPED_TRACE(setting + ": " + made.name() + " on nodes of " + std::to_string(ranks_per_node));
  Program native = program_of(made);
  native.ranks_per_node = ranks_per_node;
  const Program messages = expanded(native, setting);
  finish(native, "native");
  EXPECT_EQ(count(messages, made.op), 0);
  EXPECT_GT(count(messages, "send"), 0);
  EXPECT_EQ(run(messages, true, 1), run(native, true, 1));
  if (made.op != "all_reduce") return;
  const auto rounded = run(messages, false, 2);
  for (const auto& of_rank : rounded) {
    EXPECT_EQ(of_rank, rounded[0]);
  }
}

/// By every algorithm, on all meshes.
void expect_equal(Collective made) {
  const std::vector<TensorType> in = made.in;
  for (const auto& axes : meshes()) {
    made.axes = axes;
    made.in = in;
    for (TensorType& type : made.in) {
      if (made.op == "reduce_scatter") {
        type.dims[0] *= graph::Mesh{axes}.size();
      }
    }
    for (const char* algorithm : {"ring", "halving_doubling"}) {
      expect_equal(made, made.op + "=" + algorithm);
    }
    // On nodes of two and of three ranks, which are an axis, a part of one, or neither.
    for (const int32_t ranks_per_node : {2, 3}) {
      for (const char* algorithm : {"hierarchical", "ho_ring"}) {
        expect_equal(made, made.op + "=" + algorithm, ranks_per_node);
      }
    }
  }
}

/// Takes every third pair of a type and a size, unless HOCKET_LONG=1 asks for all.
TEST(Expand, SumsOfAnySizeEqualTheNativeOnes) {
  int pair = 0;
  for (const bool in_place : {false, true}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::i64}) {
      for (const graph::Dims& dims : std::vector<graph::Dims>{{1}, {7}, {840, 2}, {3, 5}}) {
        if (!test::is_long() && pair++ % 3 != 0) continue;
        expect_equal({"all_reduce", {}, {}, {{dtype, dims}}, in_place});
      }
    }
    const std::vector<TensorType> mixed{
        {DType::f32, {3, 5}}, {DType::i64, {4}}, {DType::f32, {1}}, {DType::f64, {2, 2, 2}}};
    expect_equal({"all_reduce", {}, {}, mixed, in_place});
    const graph::Attrs max{{"monoid", std::string("max")}};
    expect_equal({"all_reduce", max, {}, {{DType::f64, {840, 2}}}, in_place});
  }
}

/// Copies of a ring run in the lane in which its messages come in, the first one too.
TEST(Expand, TheOwnBlockIsCopiedWhereMessagesComeIn) {
  const Program made =
      expanded(program_of({"all_gather", {{"dim", int64_t{0}}}, {{"a", 4}}, {{DType::f64, {4}}}}),
               "all_gather=ring");
  const auto lane_of_first = [&](const char* op) {
    const std::vector<program::Task>& tasks = made.classes[0].tasks;
    const auto first = std::find_if(tasks.begin(), tasks.end(), [&](const program::Task& task) {
      return made.kind(task).op == op;
    });
    return first == tasks.end() ? program::Lane::host : first->lane;
  };
  EXPECT_EQ(lane_of_first("recv"), program::Lane::intra_rx);
  EXPECT_EQ(lane_of_first("copy"), program::Lane::intra_rx);
}

/// Tasks that a pass makes belong to the micro-batch of the task that they stand for.
TEST(Expand, MessagesBelongToTheirMicroBatch) {
  parallel::Plan plan;
  plan.tp = 2;
  plan.num_micro_batches = 2;
  const check::test::Rewrites rewrites{.passes = {"expand"}, .settings = {"all_reduce=ring"}};
  const check::test::Case c = check::test::make_case(check::test::dense(2, false), plan, 8, 0,
                                                     check::test::Purpose::train, rewrites);
  std::map<int32_t, int> sends;
  for (const program::Task& task : c.program.classes[0].tasks) {
    if (task.phase <= program::Phase::backward && c.program.kind(task).op == "send") {
      ++sends[task.micro_batch];
    }
  }
  EXPECT_EQ(sends.size(), 2u);
  EXPECT_GT(sends[0], 0);
  EXPECT_EQ(sends[0], sends[1]);
}

TEST(Expand, ReduceScatterAndAllGatherEqualTheNativeOnes) {
  for (const DType dtype : {DType::f32, DType::i64}) {
    for (const graph::Dims& dims : std::vector<graph::Dims>{{1}, {3, 2}}) {
      const graph::Attrs rows{{"dim", int64_t{0}}};
      expect_equal({"reduce_scatter", rows, {}, {{dtype, dims}}});
      expect_equal({"all_gather", rows, {}, {{dtype, dims}}});
    }
  }
}

/// Messages and bytes equal docs/collectives.md. Times follow on links of 1 us and 10 GB/s: by
/// messages for small sizes, by bytes for large ones.
TEST(Expand, MessagesAndBytesAreTheDocumentedOnes) {
  struct Row {
    std::vector<graph::Axis> axes;
    int ring, halving;  ///< messages of a sum
  };
  const std::vector<Row> rows = {{{{"a", 2}}, 2, 2},     {{{"a", 8}}, 14, 6},
                                 {{{"a", 64}}, 126, 12}, {{{"a", 7}}, 12, 12},
                                 {{{"a", 12}}, 22, 8},   {{{"a", 2}, {"b", 16}}, 32, 10}};
  const auto time_of = [](const Program& program) {
    const cost::CostModel costs(test::one_node(program.num_ranks()), std::nullopt, 1);
    return static_cast<double>(sim::simulate(program, costs, {}).step_ns);
  };
  for (const Row& row : rows) {
    const int64_t n = graph::Mesh{row.axes}.size();
    for (const int64_t bytes : {8 * n, 800'000'000 / (8 * n) * (8 * n)}) {
      const Collective sum{"all_reduce", {}, row.axes, {{DType::f64, {bytes / 8}}}};
      SCOPED_TRACE(sum.name());
      const auto expect = [&](const char* algorithm, int messages) {
        const Program made = expanded(program_of(sum), std::string("all_reduce=") + algorithm);
        EXPECT_EQ(count(made, "send"), messages) << algorithm;
        EXPECT_EQ(bytes_sent(made, program::Lane::intra), 2 * (bytes / n) * (n - 1)) << algorithm;
        return time_of(made);
      };
      const double ring = expect("ring", row.ring);
      const double halving = expect("halving_doubling", row.halving);
      if (bytes > 1000 * n) {
        EXPECT_NEAR(halving / ring, 1, 0.15);
      } else {
        EXPECT_NEAR(halving / ring, static_cast<double>(row.halving) / row.ring, 0.15);
      }
    }
  }
}

/// Bytes and messages of a rank inside its node and between nodes, where g nodes of m ranks are one
/// axis.
TEST(Expand, OnNodesLittleIsSentBetweenThem) {
  using program::Lane;
  const int64_t g = 2, m = 4, elements = 640, bytes = elements * 8;
  const auto made = [&](const std::string& op, const std::string& algorithm) {
    const graph::Attrs rows{{"dim", int64_t{0}}};
    Program native =
        program_of({op,
                    op == "all_reduce" ? graph::Attrs{} : rows,
                    {{"a", g * m}},
                    {{DType::f64, {op == "all_gather" ? elements / (g * m) : elements}}}});
    native.ranks_per_node = m;
    return expanded(native, op + "=" + algorithm);
  };
  for (const auto& [algorithm, pieces] : {std::pair{"hierarchical", 1}, {"ho_ring", 4}}) {
    const Program sum = made("all_reduce", algorithm);
    EXPECT_EQ(bytes_sent(sum, Lane::intra), 2 * bytes * (m - 1) / m);
    EXPECT_EQ(bytes_sent(sum, Lane::inter), 2 * bytes / m * (g - 1) / g);
    EXPECT_EQ(count(sum, "send"), pieces * 2 * (m - 1 + g - 1));
    for (const char* op : {"reduce_scatter", "all_gather"}) {
      const Program half = made(op, algorithm);
      EXPECT_EQ(bytes_sent(half, Lane::intra), bytes * (m - 1) / m) << op;
      EXPECT_EQ(bytes_sent(half, Lane::inter), bytes / m * (g - 1) / g) << op;
      EXPECT_EQ(count(half, "send"), pieces * (g * (m - 1) + g - 1)) << op;
    }
  }
  const Program ring = made("all_reduce", "ring");
  EXPECT_EQ(bytes_sent(ring, Lane::inter), 2 * bytes * (g * m - 1) / (g * m));
}

/// Two nodes of two ranks, with links between them that are ten times slower. The time of the
/// slower links alone is at least 1.3 times shorter than one ring: there every hop waits for them.
TEST(Expand, PiecesGoInsideWhileOthersGoBetween) {
  cost::Cluster cluster = test::one_node(2);
  cluster.nodes = 2;
  cluster.links.inter = test::link_of(1e-6, 1e9);
  const auto time_of = [&](const std::string& op, const std::string& algorithm) {
    const int64_t elements = int64_t{1} << 22;
    const graph::Attrs rows{{"dim", int64_t{0}}};
    Program native = program_of({op,
                                 op == "all_reduce" ? graph::Attrs{} : rows,
                                 {{"a", 4}},
                                 {{DType::f64, {op == "all_gather" ? elements / 4 : elements}}}});
    native.ranks_per_node = 2;
    const Program made = expanded(native, op + "=" + algorithm);
    return static_cast<double>(
        sim::simulate(made, cost::CostModel(cluster, std::nullopt, 1), {}).step_ns);
  };
  for (const char* op : {"all_reduce", "reduce_scatter", "all_gather"}) {
    const double ring = time_of(op, "ring"), levels = time_of(op, "hierarchical");
    const double pieces = time_of(op, "ho_ring");
    std::cout << op << ": ring " << ring / 1e6 << " ms, hierarchical " << levels / 1e6
              << " ms, ho_ring " << pieces / 1e6 << " ms\n";
    EXPECT_GE(ring / pieces, 1.3) << op;
    EXPECT_LT(pieces, levels) << op;
  }
}

/// Returns two reductions on two nodes of two ranks, the second behind the first, after the passes.
Program two_sums(program::Phase phase, const std::string& setting) {
  Program native = program_of({"all_reduce", {}, {{"a", 4}}, {{DType::f64, {1 << 16}}}});
  native.ranks_per_node = 2;
  program::RankClass& cls = native.classes[0];
  const size_t buffers = cls.buffers.size();
  for (size_t i = 0; i < buffers; ++i) {
    program::Buffer other = cls.buffers[i];
    other.name += " of the second";
    cls.buffers.push_back(std::move(other));
  }
  program::Task second = cls.tasks[0];
  second.in[0] = BufferId(second.in[0].value() + static_cast<int32_t>(buffers));
  second.out[0] = BufferId(second.out[0].value() + static_cast<int32_t>(buffers));
  cls.tasks.push_back(second);
  for (program::Task& task : cls.tasks) {
    task.phase = phase;
  }
  return expanded(native, setting);
}

/// A sum of gradients gathers inside of nodes when the next one has begun there. So the links
/// between nodes go over to the next one at once. Other sums, which a task waits for, do not.
TEST(Expand, LinksBetweenNodesGoOverToTheNextSumOfGradients) {
  cost::Cluster cluster = test::one_node(2);
  cluster.nodes = 2;
  cluster.links.inter = test::link_of(1e-6, 5e9);
  const Program native = two_sums(program::Phase::grad, "all_reduce=native");
  for (const char* algorithm : {"hierarchical", "ho_ring"}) {
    SCOPED_TRACE(algorithm);
    const auto made = [&](program::Phase phase) {
      return two_sums(phase, std::string("all_reduce=") + algorithm);
    };
    const auto time_of = [&](const Program& program) {
      const cost::CostModel costs(cluster, std::nullopt, 1);
      return static_cast<double>(sim::simulate(program, costs, {}).step_ns);
    };
    const Program beside = made(program::Phase::grad), behind = made(program::Phase::forward);
    EXPECT_EQ(run(beside, true, 1), run(native, true, 1));
    EXPECT_EQ(bytes_sent(beside, program::Lane::inter), bytes_sent(behind, program::Lane::inter));
    EXPECT_LT(time_of(beside), 0.95 * time_of(behind));
  }
}

/// Neighbours exchange the most: of 8 ranks in nodes of two, 1/4 and 1/8 leave the node, and come
/// back. Around a ring everything passes between nodes.
TEST(Expand, HalvesOfFewBytesLeaveTheNode) {
  const Collective sum{"all_reduce", {}, {{"a", 8}}, {{DType::f64, {64}}}};
  Program native = program_of(sum);
  native.ranks_per_node = 2;
  const Program halving = expanded(native, "all_reduce=halving_doubling");
  EXPECT_EQ(bytes_sent(halving, program::Lane::intra), 2 * 64 * 8 / 2);
  EXPECT_EQ(bytes_sent(halving, program::Lane::inter), 2 * (64 * 8 / 4 + 64 * 8 / 8));
  const Program ring = expanded(native, "all_reduce=ring");
  EXPECT_EQ(bytes_sent(ring, program::Lane::inter), 2 * 64 * 7);
}

}  // namespace
}  // namespace hocket::passes
