// SPDX-License-Identifier: Apache-2.0
#include "tests/pieces/written_util.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "base/hash.h"
#include "base/rng.h"
#include "check/check.h"
#include "check/mutants/mutate.h"
#include "cost/cost_model.h"
#include "engine/params.h"
#include "kernels/backend.h"
#include "ops/op.h"
#include "parallel/lower.h"
#include "passes/finish.h"
#include "program/finalize.h"
#include "program/text.h"
#include "runtime/local_ranks.h"
#include "sim/simulator.h"

namespace hocket::test {

using program::BufferKind;

Written::Written(std::vector<graph::Axis> axes) {
  program.config = "{}";
  program.roles[0].mesh.axes = std::move(axes);
  program.classes.resize(1);
  program.classes[0].name = "all";
}

TensorId Written::input(const std::string& name, const TensorType& type) {
  return graph.input(name, type, true);
}

std::vector<TensorId> Written::apply(const std::string& name, const std::string& op,
                                     const graph::Attrs& attrs, const std::vector<TensorId>& in) {
  graph::Node node;
  node.op = op;
  node.attrs = attrs;
  node.in = in;
  node.layer = 0;
  std::vector<TensorType> types;
  for (TensorId id : in) {
    types.push_back(graph.tensor(id).type);
  }
  for (const TensorType& type : ops::find(op).infer(attrs, types)) {
    graph::Tensor made;
    made.name = node.out.empty() ? name : fmt::format("{}.{}", name, node.out.size());
    made.type = type;
    made.producer = static_cast<graph::NodeId>(graph.nodes.size());
    made.layer = 0;
    node.out.push_back(graph.add_tensor(made));
  }
  graph.nodes.push_back(node);
  return node.out;
}

Layout Written::split(int dim, const std::vector<std::string>& axes) const {
  Layout layout;
  for (const std::string& name : axes) {
    layout[axis(name)] = graph::Placement::split(dim);
  }
  return layout;
}

BufferId Written::fed(TensorId tensor, const Layout& layout) {
  program::Buffer buffer;
  buffer.kind = BufferKind::input;
  buffer.name = graph.tensor(tensor).name;
  buffer.layout = layout;
  buffer.type = graph::local_type(graph.tensor(tensor).type, layout, mesh());
  program.classes[0].buffers.push_back(buffer);
  return program.classes[0].buffers.size() - 1;
}

BufferId Written::kept(TensorId tensor, const Layout& layout) {
  const BufferId id = fed(tensor, layout);
  program.classes[0].buffers[id].kind = BufferKind::output;
  program.classes[0].buffers[id].micro_batch = 0;
  return id;
}

BufferId Written::step(const TensorType& type) {
  program::Buffer buffer;
  buffer.type = type;
  program.classes[0].buffers.push_back(buffer);
  return program.classes[0].buffers.size() - 1;
}

program::TableId Written::table(const Function& function) {
  program::Table table;
  int64_t ranks = 1;
  for (size_t axis = 0; axis < mesh().axes.size(); ++axis) {
    table.axes.push_back(static_cast<int32_t>(axis));
    ranks *= mesh().axes[axis].size;
  }
  for (int32_t rank = 0; rank < ranks; ++rank) {
    table.values.push_back(function(mesh().coords(rank)));
  }
  return program.intern(std::move(table));
}

BufferId Written::part(BufferId base, int dim, int64_t length, const Function& begin) {
  program::Buffer view;
  view.kind = BufferKind::view;
  view.type = type(base);
  view.type.dims[dim] = length;
  view.base = base;
  view.dim = dim;
  view.by = table(begin);
  program.classes[0].buffers.push_back(view);
  return program.classes[0].buffers.size() - 1;
}

program::Task& Written::task(const std::string& op, const graph::Attrs& attrs,
                             const std::vector<BufferId>& in, const std::vector<BufferId>& out,
                             const Begins& begins) {
  program::Kind kind;
  kind.op = op;
  kind.attrs = attrs;
  program::Task made;
  for (BufferId id : in) {
    kind.in.push_back(type(id));
  }
  for (BufferId id : out) {
    kind.out.push_back(type(id));
  }
  for (const auto& [letter, function] : begins) {
    made.begins.push_back({letter, 0, table(function)});
  }
  made.kind = program.intern(std::move(kind));
  made.in = in;
  made.out = out;
  made.layer = 0;
  program.classes[0].tasks.push_back(made);
  return program.classes[0].tasks.back();
}

void Written::collective(const std::string& op, const graph::Attrs& attrs,
                         const std::vector<std::string>& axes, const std::vector<BufferId>& in,
                         const std::vector<BufferId>& out) {
  program::Group group;
  for (const std::string& name : axes) {
    group.axes.push_back(axis(name));
  }
  const program::GroupId id = program.intern(group);
  task(op, attrs, in, out).group = id;
}

void Written::shift(const std::string& name, int32_t offset, BufferId from, BufferId to) {
  program::Task& send = task("send", {}, {from}, {});
  send.peer_axis = axis(name);
  send.peer = offset;
  send.tag = next_tag_;
  program::Task& receive = task("recv", {}, {}, {to});
  receive.peer_axis = axis(name);
  receive.peer = -offset;
  receive.tag = next_tag_++;
}

void Written::finish() { passes::finish(program, "written"); }

namespace {

/// Random values of an input, by its type.
std::vector<std::byte> values_of(const graph::Tensor& tensor, uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.type.bytes()));
  Rng rng(mix64(seed) ^ hash128(tensor.name).low);
  if (tensor.name == "experts") {
    // Of every token, some of four experts, each once.
    const int64_t top_k = tensor.type.dims[1];
    for (int64_t token = 0; token < tensor.type.dims[0]; ++token) {
      std::vector<int32_t> chosen{0, 1, 2, 3};
      rng.shuffle(chosen);
      std::memcpy(bytes.data() + token * top_k * 4, chosen.data(), static_cast<size_t>(top_k) * 4);
    }
    return bytes;
  }
  int32_t position = -1;
  for (int64_t i = 0; i < tensor.type.numel(); ++i) {
    if (tensor.type.dtype == DType::f64) {
      const double value = rng.normal();
      std::memcpy(bytes.data() + i * 8, &value, 8);
    } else {
      // Positions count up, in documents of several lengths too; other integers are tokens of a
      // small vocabulary.
      const bool begins = tensor.name == "documents" && rng.next() % 5 == 0;
      position = begins ? 0 : position + 1;
      const bool counts = tensor.name == "positions" || tensor.name == "documents";
      const int32_t value = counts ? position : static_cast<int32_t>(rng.next() % 8);
      std::memcpy(bytes.data() + i * 4, &value, 4);
    }
  }
  return bytes;
}

Results run_program(const graph::Graph& graph, const program::Program& program, uint64_t seed) {
  runtime::RankOptions options;
  options.timeout = std::chrono::milliseconds(5000);
  options.poison = true;
  runtime::LocalRanks ranks(program.num_ranks(), kernels::cpu_backend(), options);
  runtime::LocalRun run(std::make_shared<const program::Program>(program), ranks);
  for (int32_t rank : ranks.ids()) {
    runtime::Executor& executor = run.executor(rank);
    for (const graph::Tensor& tensor : graph.tensors) {
      if (tensor.kind != graph::TensorKind::input || !executor.has(tensor.name)) continue;
      const std::vector<std::byte> full = values_of(tensor, seed);
      auto* to = static_cast<std::byte*>(executor.input(tensor.name));
      const int64_t size = size_of(tensor.type.dtype);
      engine::for_each_run(tensor.type, executor.buffer(tensor.name).layout, program, rank,
                           [&](int64_t begin, int64_t count, int64_t local) {
                             std::memcpy(to + local * size, full.data() + begin * size,
                                         static_cast<size_t>(count * size));
                           });
    }
  }
  run.step();
  Results results;
  for (TensorId id : graph.outputs) {
    const graph::Tensor& tensor = graph.tensor(id);
    // Every rank's part counts: replicas must agree.
    for (int32_t rank : ranks.ids()) {
      const runtime::Executor& executor = run.executor(rank);
      const program::Buffer& buffer = executor.buffer(tensor.name, 0);
      const auto* data = static_cast<const double*>(executor.output(tensor.name, 0));
      std::vector<double>& values = results[tensor.name];
      values.resize(static_cast<size_t>(tensor.type.numel() * ranks.world_size()), NAN);
      engine::for_each_run(
          tensor.type, buffer.layout, program, rank,
          [&](int64_t begin, int64_t count, int64_t local) {
            for (int64_t i = 0; i < count; ++i) {
              values[static_cast<size_t>((begin + i) * ranks.world_size() + rank)] =
                  data[local + i];
            }
          });
    }
  }
  return results;
}

}  // namespace

Results run(const Written& written, const program::Program& program, uint64_t seed) {
  return run_program(written.graph, program, seed);
}

Results run_alone(const Written& written, uint64_t seed) {
  program::Program program = parallel::lower(written.graph, parallel::Plan{});
  program::finalize(program);
  return run_program(written.graph, program, seed);
}

std::string difference(const Results& got, const Results& want) {
  // One rank has one value of each element, several have one for every rank that holds it.
  for (const auto& [name, right] : want) {
    const auto found = got.find(name);
    if (found == got.end()) return name + " is missing";
    const size_t ranks = found->second.size() / right.size();
    double error = 0;
    double total = 0;
    for (size_t i = 0; i < right.size(); ++i) {
      bool held = false;
      for (size_t rank = 0; rank < ranks; ++rank) {
        const double value = found->second[i * ranks + rank];
        if (std::isnan(value)) continue;
        held = true;
        error += (value - right[i]) * (value - right[i]);
      }
      if (!held) return fmt::format("{}[{}] is nowhere, or no number", name, i);
      total += right[i] * right[i];
    }
    if (!(std::sqrt(error) <= 1e-10 * std::sqrt(total))) {
      return fmt::format("{} differs by {}", name, std::sqrt(error / total));
    }
  }
  return "";
}

namespace {

uint64_t from_environment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text ? std::strtoull(text, nullptr, 10) : otherwise;
}

cost::Cluster one_node(int32_t ranks) {
  cost::Cluster cluster = cost::parse_cluster(R"(
name: test
nodes: 1
devices_per_node: 1
device:
  name: test device
  memory: {value: 1GB}
  memory_bandwidth: {value: 100GB/s}
  peak: {f32: {value: 1TFLOP/s}, f64: {value: 1TFLOP/s}}
)",
                                              "test.yaml");
  cluster.devices_per_node = ranks;
  cluster.links.intra = {{1e-6, ""}, {10e9, ""}, {1, ""}};
  return cluster;
}

/// "" or what is wrong with what an accepted program does.
std::string wrong_results(const Written& written, const program::Program& program, uint64_t seed,
                          const Results& want) {
  try {
    return difference(run(written, program, seed), want);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

void expect_proven_run_simulated(std::span<const WrittenCase> cases) {
  for (const WrittenCase& c : cases) {
    Written w = c.make();
    w.finish();
    const check::Verdict verdict = check::check(w.program, w.graph);
    EXPECT_TRUE(verdict.ok()) << c.name << "\n" << to_text(verdict);
    if (!verdict.ok()) continue;
    EXPECT_EQ(wrong_results(w, w.program, 1, run_alone(w, 1)), "") << c.name;
    // The replay ends, and its text gives the same one.
    const cost::CostModel costs(one_node(w.program.num_ranks()), std::nullopt, 1);
    const sim::SimReport report = sim::simulate(w.program, costs, {});
    EXPECT_GT(report.step_ns, 0) << c.name;
    const program::Program parsed = program::parse_program(program::print(w.program));
    EXPECT_EQ(sim::simulate(parsed, costs, {}).step_ns, report.step_ns) << c.name;
  }
}

void expect_mutants_refused_or_equal(std::span<const WrittenCase> cases) {
  const uint64_t seed = from_environment("HOCKET_SEED", 1);
  const uint64_t mutants = from_environment("HOCKET_MUTANTS", 40);
  std::cout << "HOCKET_SEED=" << seed << " HOCKET_MUTANTS=" << mutants << "\n";
  for (const WrittenCase& c : cases) {
    Written w = c.make();
    w.finish();
    const Results want = run_alone(w, seed);
    int counts[4] = {};
    std::map<std::string, int> made;
    for (uint64_t i = 0; i < mutants; ++i) {
      program::Program mutant = w.program;
      check::Mutation mutation;
      // Every second one is of a kind that the case names.
      const bool named = i % 2 == 0 && !c.kinds.empty();
      const std::string kind = named ? c.kinds[i / 2 % c.kinds.size()] : "";
      if (!check::mutate(mutant, seed * 1000003 + i, &mutation, kind)) continue;
      ++made[mutation.kind];
      const check::Verdict verdict = check::check(mutant, w.graph);
      const check::Localisation where = check::localise(mutation, verdict);
      ++counts[static_cast<int>(where)];
      if (where != check::Localisation::accepted) continue;
      EXPECT_EQ(wrong_results(w, mutant, seed, want), "")
          << c.name << ", mutant " << i << ": " << mutation.kind << ": " << mutation.text;
    }
    for (const std::string& kind : c.kinds) {
      EXPECT_GT(made[kind], 0) << c.name << " has no mutant of kind " << kind;
    }
    std::cout << c.name << ": accepted and equal " << counts[0] << ", at the task " << counts[1]
              << ", connected " << counts[2] << ", elsewhere " << counts[3] << "\n";
  }
}

}  // namespace hocket::test
