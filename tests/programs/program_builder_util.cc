// SPDX-License-Identifier: Apache-2.0
#include "tests/programs/program_builder_util.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <iostream>
#include <mutex>
#include <thread>

#include "base/hash.h"
#include "base/rng.h"
#include "check/check.h"
#include "check/mutants/mutate.h"
#include "cost/cost_model.h"
#include "graph/names.h"
#include "kernels/backend.h"
#include "ops/op.h"
#include "parallel/lowering/lower.h"
#include "passes/finish.h"
#include "program/buffer_contents.h"
#include "program/finalize.h"
#include "program/parts.h"
#include "program/text.h"
#include "program/views.h"
#include "runtime/local_ranks.h"
#include "sim/simulator.h"
#include "tests/cluster_util.h"
#include "tests/compare_util.h"

namespace hocket::test {

using program::BufferKind;

ProgramBuilder::ProgramBuilder(std::vector<graph::Axis> axes) {
  program.config = "{}";
  program.roles[0].mesh.axes = std::move(axes);
  program.classes.resize(1);
  program.classes[0].name = "all";
}

program::ClassId ProgramBuilder::add_role(const std::string& name, std::vector<graph::Axis> axes) {
  program.roles.push_back({name, {std::move(axes)}});
  program.classes.emplace_back();
  cls_ = program.classes.size() - 1;
  current().role = program.roles.size() - 1;
  current().name = name;
  return cls_;
}

program::ClassId ProgramBuilder::add_class(const program::Box& box) {
  const program::RoleId role = current().role;
  program.classes.emplace_back();
  cls_ = program.classes.size() - 1;
  current().role = role;
  current().box = box;
  current().name = fmt::format("class{}", cls_);
  return cls_;
}

TensorType ProgramBuilder::local(const TensorType& type, const Layout& layout) const {
  const int32_t rank = program.ranks_of(cls_)[0];
  return graph::local_type(type, layout, mesh(), program.coords(rank));
}

ProgramBuilder::PieceOffsets ProgramBuilder::piece_offsets_of(TensorId tensor,
                                                              const Layout& layout) const {
  PieceOffsets offsets;
  const TensorType& type = graph.tensor(tensor).type;
  const graph::Mesh mesh_here = mesh();
  for (size_t dim = 0; dim < type.dims.size(); ++dim) {
    const auto begin = [=](const At& at) {
      return graph::local_runs(type, layout, mesh_here, at)[dim].begin;
    };
    if (!layout.axes_of(static_cast<int>(dim)).empty()) {
      offsets.emplace_back(static_cast<char>('a' + dim), begin);
    }
  }
  return offsets;
}

void ProgramBuilder::send_to(program::RoleId to, BufferId from, TensorId tensor,
                             const Layout& layout) {
  const program::GroupId group = program.intern(program::group_between(current().role, to));
  task("transfer", {}, {from}, {}, piece_offsets_of(tensor, layout)).group = group;
}

void ProgramBuilder::receive_from(program::RoleId from, BufferId to, TensorId tensor,
                                  const Layout& layout) {
  const program::GroupId group = program.intern(program::group_between(current().role, from));
  task("transfer", {}, {}, {to}, piece_offsets_of(tensor, layout)).group = group;
}

TensorId ProgramBuilder::input(const std::string& name, const TensorType& type, bool per_step) {
  return graph.input(name, type, per_step);
}

TensorId ProgramBuilder::param(const std::string& name, const TensorType& type) {
  return graph.param(name, type, 0, {graph::Init::Kind::normal, 1.0});
}

std::vector<TensorId> ProgramBuilder::apply(const std::string& name, const std::string& op,
                                            const graph::Attrs& attrs,
                                            const std::vector<TensorId>& in, graph::Phase phase) {
  graph::Node node;
  node.phase = phase;
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

Layout ProgramBuilder::split(int dim, const std::vector<std::string>& axes) const {
  Layout layout;
  for (const std::string& name : axes) {
    layout.set(axis(name), graph::Placement::split(dim));
  }
  return layout;
}

BufferId ProgramBuilder::input_buffer(TensorId tensor, const Layout& layout, int32_t micro_batch) {
  program::Buffer buffer;
  buffer.kind = BufferKind::input;
  buffer.name = graph.tensor(tensor).name;
  buffer.layout = layout;
  buffer.type = local(graph.tensor(tensor).type, layout);
  buffer.micro_batch = micro_batch;
  current().buffers.push_back(buffer);
  return current().buffers.size() - 1;
}

BufferId ProgramBuilder::output_buffer(TensorId tensor, const Layout& layout, int32_t micro_batch) {
  const BufferId id = input_buffer(tensor, layout, micro_batch);
  current().buffers[id].kind = BufferKind::output;
  return id;
}

BufferId ProgramBuilder::persistent_buffer(TensorId tensor, const Layout& layout) {
  const BufferId id = input_buffer(tensor, layout);
  current().buffers[id].kind = BufferKind::persistent;
  return id;
}

BufferId ProgramBuilder::bucket(BufferKind kind, const std::string& name, int64_t elements,
                                const std::vector<BucketEntry>& places, const Layout& layout) {
  program::Buffer buffer;
  buffer.kind = kind;
  buffer.name = name;
  buffer.layout = layout;
  const DType dtype = graph.tensor(places.at(0).tensor).type.dtype;
  buffer.type = local({dtype, {elements}}, layout);
  for (const BucketEntry& place : places) {
    buffer.slots.push_back({graph.tensor(place.tensor).name, place.layout, place.begin});
  }
  current().buffers.push_back(buffer);
  return current().buffers.size() - 1;
}

BufferId ProgramBuilder::step_buffer(const TensorType& type) {
  program::Buffer buffer;
  buffer.type = type;
  current().buffers.push_back(buffer);
  return current().buffers.size() - 1;
}

program::TableId ProgramBuilder::table(const Function& function) {
  program::Table table;
  table.role = current().role;
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

BufferId ProgramBuilder::view(BufferId base, int dim, int64_t length, const Function& begin) {
  program::Buffer view;
  view.kind = BufferKind::view;
  view.type = type(base);
  view.type.dims[dim] = length;
  view.base = base;
  view.dim = dim;
  view.by = table(begin);
  current().buffers.push_back(view);
  return current().buffers.size() - 1;
}

BufferId ProgramBuilder::flat_view(BufferId base, const graph::Dims& dims, const Function& begin) {
  program::Buffer view;
  view.kind = BufferKind::view;
  view.type = {type(base).dtype, dims};
  view.base = base;
  view.by = table(begin);
  current().buffers.push_back(view);
  return current().buffers.size() - 1;
}

program::Task& ProgramBuilder::task(const std::string& op, const graph::Attrs& attrs,
                                    const std::vector<BufferId>& in,
                                    const std::vector<BufferId>& out, const PieceOffsets& offsets) {
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
  for (const auto& [letter, function] : offsets) {
    made.piece_offsets.push_back({letter, 0, table(function)});
  }
  const ops::Op* const rules = ops::find_or_null(op);
  if (experts > 0 && rules) {
    const ops::Cost cost = ops::cost_of(*rules, {kind.attrs, kind.in, kind.out, experts});
    kind.flops = cost.flops;
    kind.bytes = cost.bytes;
  }
  made.kind = program.intern(std::move(kind));
  made.in = in;
  made.out = out;
  made.layer = 0;
  current().tasks.push_back(made);
  return current().tasks.back();
}

void ProgramBuilder::collective(const std::string& op, const graph::Attrs& attrs,
                                const std::vector<std::string>& axes,
                                const std::vector<BufferId>& in, const std::vector<BufferId>& out) {
  program::Group group;
  group.role = current().role;
  for (const std::string& name : axes) {
    group.axes.push_back(axis(name));
  }
  const program::GroupId id = program.intern(group);
  task(op, attrs, in, out).group = id;
}

void ProgramBuilder::shift(const std::string& name, int32_t offset, BufferId from, BufferId to) {
  message(from, to, {axis(name), offset}, {axis(name), -offset});
}

void ProgramBuilder::shift(const std::string& name, const Function& there, const Function& back,
                           BufferId from, BufferId to) {
  message(from, to, {axis(name), 0, table(there)}, {axis(name), 0, table(back)});
}

void ProgramBuilder::message(BufferId from, BufferId to, const program::PeerMap& there,
                             const program::PeerMap& back) {
  const auto end = [&](program::Task& task, const program::PeerMap& peer_map) {
    task.peer_axis = peer_map.axis;
    task.peer = peer_map.offset;
    task.peer_by = peer_map.by;
    task.tag = next_tag_;
  };
  end(task("send", {}, {from}, {}), there);
  end(task("recv", {}, {}, {to}), back);
  ++next_tag_;
}

void ProgramBuilder::finish() { passes::finish(program, "written"); }

std::vector<std::byte> values_of(const graph::Tensor& tensor, int32_t micro_batch, uint64_t seed) {
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.type.bytes()));
  Rng rng(mix64(seed + static_cast<uint64_t>(micro_batch + 1)) ^ hash128(tensor.name).low);
  if (tensor.name == "experts") {
    // Gives every token distinct experts out of four.
    const int64_t top_k = tensor.type.dims[1];
    for (int64_t token = 0; token < tensor.type.dims[0]; ++token) {
      std::vector<int32_t> chosen{0, 1, 2, 3};
      rng.shuffle(chosen);
      std::memcpy(bytes.data() + token * top_k * 4, chosen.data(), static_cast<size_t>(top_k) * 4);
    }
    return bytes;
  }
  int32_t position = -1;
  // Means of squares, and 1 - beta^t, are positive.
  const bool positive =
      tensor.name.starts_with(graph::names::kExpAvgSqOf) || tensor.name == graph::names::kHyper;
  for (int64_t i = 0; i < tensor.type.numel(); ++i) {
    if (tensor.type.dtype == DType::f64) {
      const double normal = rng.normal();
      const double value = positive ? 0.1 + std::abs(normal) : normal;
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

namespace {

/// Fills the buffer's parts of its tensors, as the host would.
void fill(const graph::Graph& graph, const program::Program& program, int32_t rank,
          const program::Buffer& buffer, uint64_t seed, std::byte* to) {
  for (const std::string& name : program::tensors_of(buffer.name, buffer.slots)) {
    const graph::Tensor& tensor = graph.tensor(graph.find(name));
    const std::vector<std::byte> full = values_of(tensor, buffer.micro_batch, seed);
    const int64_t size = size_of(tensor.type.dtype);
    program::for_each_run(buffer, name, tensor.type, program, rank,
                          [&](int64_t begin, int64_t count, int64_t local) {
                            std::memcpy(to + local * size, full.data() + begin * size,
                                        static_cast<size_t>(count * size));
                          });
  }
}

void read(const graph::Graph& graph, const program::Program& program, int32_t rank,
          const program::Buffer& buffer, const double* data, Results* results) {
  for (const std::string& name : program::tensors_of(buffer.name, buffer.slots)) {
    const graph::Tensor& tensor = graph.tensor(graph.find(name));
    const auto size = static_cast<size_t>(tensor.type.numel());
    Copy copy{std::vector<double>(size), std::vector<bool>(size, false)};
    program::for_each_run(buffer, name, tensor.type, program, rank,
                          [&](int64_t begin, int64_t count, int64_t local) {
                            for (int64_t i = 0; i < count; ++i) {
                              const auto at = static_cast<size_t>(begin + i);
                              copy.values[at] = data[local + i];
                              copy.held[at] = true;
                            }
                          });
    (*results)[name].push_back(std::move(copy));
  }
}

/// A program on local ranks, fed.
struct Ranks {
  Ranks(const graph::Graph& graph, const program::Program& fed, uint64_t seed)
      : program(fed),
        ranks(fed.num_ranks(), kernels::cpu_backend(), options()),
        run(std::make_shared<const program::Program>(fed), store) {
    each_buffer([&](int32_t rank, const program::Buffer& buffer) {
      if (buffer.kind == BufferKind::input) {
        void* const to = run.executor(rank).input(buffer.name, buffer.micro_batch);
        fill(graph, program, rank, buffer, seed, static_cast<std::byte*>(to));
      } else if (buffer.kind == BufferKind::persistent) {
        fill(graph, program, rank, buffer, seed, data_of(rank, buffer));
      }
    });
  }

  static runtime::RankOptions options() {
    runtime::RankOptions options;
    options.timeout = std::chrono::milliseconds(5000);
    options.poison = true;
    return options;
  }
  /// Returns the data of a persistent buffer.
  std::byte* data_of(int32_t rank, const program::Buffer& buffer) const {
    return store.at(rank).get(buffer, program).data;
  }
  template <class Visit>
  void each_buffer(const Visit& visit) {
    for (int32_t rank : ranks.ids()) {
      for (const auto& buffer : program.classes[program.class_of(rank)].buffers) {
        visit(rank, buffer);
      }
    }
  }

  const program::Program& program;
  runtime::LocalRanks ranks;
  runtime::Store store{ranks};
  runtime::LocalRun run;
};

Results run_program(const graph::Graph& graph, const program::Program& program, uint64_t seed) {
  Ranks local(graph, program, seed);
  local.run.step();
  Results results;
  local.each_buffer([&](int32_t rank, const program::Buffer& buffer) {
    const void* data = nullptr;
    if (buffer.kind == BufferKind::output) {
      data = local.run.executor(rank).output(buffer.name, buffer.micro_batch);
    } else if (buffer.kind == BufferKind::persistent) {
      data = local.data_of(rank, buffer);
    } else {
      return;
    }
    read(graph, program, rank, buffer, static_cast<const double*>(data), &results);
  });
  return results;
}

}  // namespace

Results run(const ProgramBuilder& builder, const program::Program& program, uint64_t seed) {
  return run_program(builder.graph, program, seed);
}

namespace {

/// Returns the tasks of a class in an order in which ranks may run them one by one. Among tasks
/// that come next in their lanes with all dependencies done, tasks that wait for no other rank come
/// first.
std::vector<program::TaskId> one_by_one(const program::Program& program,
                                        const program::RankClass& cls) {
  const auto waits = [&](program::TaskId id) {
    const program::Task& task = cls.tasks[id];
    if (!program::is_communication(program.kind(task))) return 0;
    if (task.peer_axis == program::kNone) return 3;
    return task.in.empty() ? 2 : 1;
  };
  std::vector<program::TaskId> order;
  std::vector<bool> done(cls.tasks.size(), false);
  while (order.size() < cls.tasks.size()) {
    std::array<bool, program::kNumLanes> seen{};
    program::TaskId next = program::kNone;
    for (program::TaskId id = 0; id < cls.tasks.size(); ++id) {
      const program::Task& task = cls.tasks[id];
      bool& behind = seen[static_cast<size_t>(task.lane)];
      if (done[id] || behind) continue;
      behind = true;
      const bool ready = std::all_of(task.deps.begin(), task.deps.end(),
                                     [&](program::TaskId dep) { return bool{done[dep]}; });
      if (ready && (next == program::kNone || waits(id) < waits(next))) {
        next = id;
      }
    }
    done[next] = true;
    order.push_back(next);
  }
  return order;
}

/// The program with the tasks of every class in this order.
program::Program in_order(program::Program program,
                          const std::vector<std::vector<program::TaskId>>& order) {
  for (size_t cls = 0; cls < order.size(); ++cls) {
    std::vector<program::Task>& tasks = program.classes[cls].tasks;
    std::vector<program::TaskId> place(tasks.size());
    std::vector<program::Task> moved;
    for (const program::TaskId id : order[cls]) {
      place[id] = moved.size();
      moved.push_back(tasks[id]);
    }
    for (program::Task& task : moved) {
      for (program::TaskId& dep : task.deps) {
        dep = place[dep];
      }
    }
    tasks = std::move(moved);
  }
  return program;
}

}  // namespace

std::string run_watched(const ProgramBuilder& builder, const program::Program& program,
                        const ExpectedOutputs& values, uint64_t seed) {
  // The check numbers tasks and views as the executor does: those in parts written out.
  const program::Program expanded = program::expand_parts(program).program;
  std::vector<std::vector<program::TaskId>> order;
  for (const program::RankClass& cls : expanded.classes) {
    order.push_back(one_by_one(expanded, cls));
  }
  const program::Program plain = in_order(expanded, order);
  Ranks local(builder.graph, plain, seed);
  std::mutex mutex;
  std::string wrong, failed;
  const auto run_rank = [&](int32_t rank) {
    const program::ClassId cls = plain.class_of(rank);
    const program::RankClass& tasks = plain.classes[cls];
    runtime::Executor& executor = local.run.executor(rank);
    executor.run_inline([&](program::TaskId id, const std::function<void()>& execute) {
      execute();
      const program::Task& task = tasks.tasks[id];
      for (size_t output = 0; output < task.out.size(); ++output) {
        const program::Buffer& buffer = tasks.buffers[task.out[output]];
        const bool view = buffer.kind == BufferKind::view;
        const std::string differs = values.compare(
            rank, cls, order[cls][id], output, buffer.type, executor.data(task.out[output]),
            view ? program::strides_of(tasks, buffer) : std::vector<int64_t>{});
        if (differs.empty()) continue;
        std::lock_guard lock(mutex);
        wrong = wrong.empty() ? differs + ": " + program::task_name(plain, cls, id) : wrong;
      }
    });
  };
  std::vector<std::thread> threads;
  for (int32_t rank = 0; rank < plain.num_ranks(); ++rank) {
    threads.emplace_back([&, rank] {
      try {
        run_rank(rank);
      } catch (const std::exception& error) {
        std::lock_guard lock(mutex);
        failed = failed.empty() ? error.what() : failed;
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  if (wrong.empty() && !failed.empty()) throw std::runtime_error(failed);
  return wrong;
}

Results run_alone(const ProgramBuilder& builder, uint64_t seed) {
  parallel::Plan plan;
  plan.num_micro_batches = builder.program.num_micro_batches;
  program::Program program = parallel::lower(builder.graph, plan);
  program::finalize(program);
  return run_program(builder.graph, program, seed);
}

std::string difference(const Results& got, const Results& want) {
  for (const auto& [name, one] : want) {
    const auto found = got.find(name);
    if (found == got.end()) return name + " is missing";
    const std::vector<double>& right = one.at(0).values;
    double total = 0;
    for (double value : right) {
      total += value * value;
    }
    double error = 0;
    std::vector<bool> held(right.size(), false);
    for (const Copy& copy : found->second) {
      for (size_t i = 0; i < right.size(); ++i) {
        if (!copy.held[i]) continue;
        held[i] = true;
        error += (copy.values[i] - right[i]) * (copy.values[i] - right[i]);
      }
    }
    if (const auto at = std::find(held.begin(), held.end(), false); at != held.end()) {
      return fmt::format("{}[{}] is nowhere", name, at - held.begin());
    }
    if (!(std::sqrt(error) <= 1e-10 * std::sqrt(total))) {
      return fmt::format("{} differs by {}", name, std::sqrt(error / total));
    }
  }
  return "";
}

cost::Cluster one_node(int32_t ranks) {
  cost::Cluster cluster = cluster_of(1, ranks);
  cluster.device.peak.f64.value = 1e12;
  cluster.device.peak.f32.value = 2e12;
  cluster.device.host.kernels.value = 10e9;
  cluster.device.host.copies.value = 20e9;
  cluster.links.intra = link_of(1e-6, 10e9);
  cluster.links.inter = {};
  return cluster;
}

namespace {

/// Returns "", or the fault in the results of an accepted program.
std::string wrong_results(const ProgramBuilder& builder, const program::Program& program,
                          uint64_t seed, const Results& want) {
  try {
    return difference(run(builder, program, seed), want);
  } catch (const std::exception& error) {
    return error.what();
  }
}

}  // namespace

void expect_proven_run_simulated(std::span<const ProgramCase> cases) {
  for (const ProgramCase& c : cases) {
    ProgramBuilder w = c.make();
    w.finish();
    const check::Verdict verdict = check::check(w.program, w.graph);
    EXPECT_TRUE(verdict.ok()) << c.name << "\n" << to_text(verdict);
    if (!verdict.ok()) continue;
    EXPECT_EQ(wrong_results(w, w.program, 1, run_alone(w, 1)), "") << c.name;
    check::Checker checker(w.graph, w.program.num_micro_batches);
    TermValues terms(1);
    const ExpectedOutputs values(checker, w.program, terms);
    EXPECT_EQ(run_watched(w, w.program, values, 1), "") << c.name;
    EXPECT_GT(values.elements(), 0) << c.name;
    std::cout << c.name << ": " << values.values() << " complete values of " << values.elements()
              << " elements compared\n";
    // The replay ends, and its text gives the same one.
    const cost::CostModel costs(one_node(w.program.num_ranks()), std::nullopt, 1);
    const sim::SimReport report = sim::simulate(w.program, costs, {});
    EXPECT_GT(report.step_ns, 0) << c.name;
    const program::Program parsed = program::parse_program(program::print(w.program));
    EXPECT_EQ(sim::simulate(parsed, costs, {}).step_ns, report.step_ns) << c.name;
  }
}

void expect_mutants_refused_or_equal(std::span<const ProgramCase> cases) {
  const uint64_t seed = from_environment("HOCKET_SEED", 1);
  const uint64_t mutants = from_environment("HOCKET_MUTANTS", 40);
  const bool run_refused = from_environment("HOCKET_RUN_REFUSED", 0) != 0;
  std::cout << "HOCKET_SEED=" << seed << " HOCKET_MUTANTS=" << mutants << "\n";
  for (const ProgramCase& c : cases) {
    ProgramBuilder w = c.make();
    w.finish();
    const Results want = run_alone(w, seed);
    check::Checker checker(w.graph, w.program.num_micro_batches);
    TermValues terms(seed);
    int64_t compared = 0;
    int unwatched = 0;
    int counts[4] = {};
    std::map<std::string, int> right;  // by the fault and the rule that refuses it
    std::map<std::string, int> made;
    for (uint64_t i = 0; i < mutants; ++i) {
      program::Program mutant = w.program;
      check::Mutation mutation;
      // Every second one is of a kind that the case names.
      const bool named = i % 2 == 0 && !c.kinds.empty();
      const std::string kind = named ? c.kinds[i / 2 % c.kinds.size()] : "";
      if (!check::mutate(mutant, seed * 1000003 + i, &mutation, kind)) continue;
      ++made[mutation.kind];
      const check::Verdict verdict = checker.check(mutant);
      const check::Localisation where = check::localise(mutation, verdict);
      ++counts[static_cast<int>(where)];
      if (where != check::Localisation::accepted) {
        // Refused for its values alone: it runs, perhaps to the same result.
        const bool runs =
            run_refused && std::all_of(verdict.problems.begin(), verdict.problems.end(),
                                       [](const check::Problem& problem) {
                                         return problem.problem_class == check::ProblemClass::value;
                                       });
        if (runs && wrong_results(w, mutant, seed, want).empty()) {
          ++right[mutation.kind + ", " + verdict.problems[0].rule];
        }
        continue;
      }
      EXPECT_EQ(wrong_results(w, mutant, seed, want), "")
          << c.name << ", mutant " << i << ": " << mutation.kind << ": " << mutation.text;
      const ExpectedOutputs values(checker, mutant, terms);
      try {
        EXPECT_EQ(run_watched(w, mutant, values, seed), "")
            << c.name << ", mutant " << i << ": " << mutation.kind << ": " << mutation.text;
        compared += values.values();
      } catch (const std::exception&) {
        ++unwatched;  // in lanes only: task by task, one rank waits for another
      }
    }
    for (const std::string& kind : c.kinds) {
      EXPECT_GT(made[kind], 0) << c.name << " has no mutant of kind " << kind;
    }
    std::cout << c.name << ": accepted and equal " << counts[0] << ", at the task " << counts[1]
              << ", connected " << counts[2] << ", elsewhere " << counts[3];
    std::cout << "; complete values compared " << compared << ", programs not " << unwatched;
    if (run_refused) {
      std::cout << ", refused though equal:";
      for (const auto& [why, number] : right) {
        std::cout << " " << number << " (" << why << ")";
      }
    }
    std::cout << "\n";
  }
}

}  // namespace hocket::test
