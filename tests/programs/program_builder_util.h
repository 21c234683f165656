// SPDX-License-Identifier: Apache-2.0
// Programs written by hand over a small graph, with more than plans are lowered to: proven, run on
// all ranks and compared with one rank. example_test.cc is a whole one to copy.
#pragma once

#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "cost/cluster.h"
#include "graph/graph.h"
#include "program/program.h"
#include "tests/programs/task_values_util.h"

namespace hocket::test {

using graph::DType;
using graph::Layout;
using graph::TensorId;
using graph::TensorType;
using program::BufferId;

inline TensorType f64(graph::Dims dims) { return {DType::f64, std::move(dims)}; }
inline TensorType i32(graph::Dims dims) { return {DType::i32, std::move(dims)}; }

/// Coordinates of a rank, by axis.
using At = std::vector<int32_t>;
using Function = std::function<int64_t(const At&)>;

/// Builds a graph over tensors that the host feeds, and a program that is to compute it. The
/// program has one class, unless more are added.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(std::vector<graph::Axis> axes);
  /// Adds a role with a class of all its ranks, and selects this class: the calls below are for it.
  program::ClassId add_role(const std::string& name, std::vector<graph::Axis> axes);
  /// Adds a class of the current role and selects it. Requires: its ranks were in no other.
  program::ClassId add_class(const program::Box& box);
  /// Selects a class that exists.
  void select(program::ClassId cls) { cls_ = cls; }

  graph::Graph graph;
  program::Program program;

  // The graph.
  /// Adds an input, fed once per step or for every micro-batch.
  TensorId input(const std::string& name, const TensorType& type, bool per_step = true);
  TensorId param(const std::string& name, const TensorType& type);
  /// Applies an op. Returns its outputs, named `name`, `name`.1, ...
  std::vector<TensorId> apply(const std::string& name, const std::string& op,
                              const graph::Attrs& attrs, const std::vector<TensorId>& in,
                              graph::Phase phase = graph::Phase::forward);
  /// Declares the gradient of a parameter. Requires: called before the optimizer is applied.
  void gradient(TensorId param, TensorId grad) {
    graph.grads.push_back({param, {grad}, graph::kNone});
  }
  /// Declares an output of the graph, which the host reads.
  void result(TensorId id) { graph.outputs.push_back(id); }

  // The program.
  /// Number of experts, if there are routed rows: the cost of their products depends on it.
  int64_t experts = 0;
  const graph::Mesh& mesh() const { return program.mesh_of(cls_); }
  program::RankClass& current() { return program.classes[cls_]; }
  int32_t axis(const std::string& name) const { return mesh().axis(name); }
  /// Returns the layout that splits `dim` over the axes, outermost first.
  Layout split(int dim, const std::vector<std::string>& axes) const;
  /// Add a buffer of the current class with its part of a tensor: written by the host before a
  /// step, read by the host after it, or kept between steps. An empty layout: the whole tensor.
  BufferId input_buffer(TensorId tensor, const Layout& layout = {},
                        int32_t micro_batch = program::kNone);
  BufferId output_buffer(TensorId tensor, const Layout& layout = {}, int32_t micro_batch = 0);
  BufferId persistent_buffer(TensorId tensor, const Layout& layout = {});
  /// Tensor of a bucket, with its first element there.
  struct BucketEntry {
    TensorId tensor;
    int64_t begin;
    Layout layout = {};
  };
  /// Adds a flat named buffer of several tensors. `elements`: of all ranks.
  BufferId bucket(program::BufferKind kind, const std::string& name, int64_t elements,
                  const std::vector<BucketEntry>& places, const Layout& layout = {});
  /// Adds a buffer that lives inside a step.
  BufferId step_buffer(const TensorType& type);
  /// Adds a view of the indices from `begin` on along a dim of a buffer.
  BufferId view(BufferId base, int dim, int64_t length, const Function& begin);
  BufferId view(BufferId base, int dim, int64_t length, int64_t begin) {
    return view(base, dim, length, [begin](const At&) { return begin; });
  }
  /// Adds a view of the elements from `begin` on, as a tensor of dims `dims`.
  BufferId flat_view(BufferId base, const graph::Dims& dims, const Function& begin);
  BufferId flat_view(BufferId base, const graph::Dims& dims, int64_t begin) {
    return flat_view(base, dims, [begin](const At&) { return begin; });
  }
  /// Offsets of a rank's pieces along positional letters of an op (program::PieceOffset).
  using PieceOffsets = std::vector<std::pair<char, Function>>;
  /// Appends a compute task.
  program::Task& task(const std::string& op, const graph::Attrs& attrs,
                      const std::vector<BufferId>& in, const std::vector<BufferId>& out,
                      const PieceOffsets& offsets = {});
  /// Appends a collective of the ranks that differ along the axes.
  void collective(const std::string& op, const graph::Attrs& attrs,
                  const std::vector<std::string>& axes, const std::vector<BufferId>& in,
                  const std::vector<BufferId>& out);
  /// Append one side of a transfer between roles: the current class sends its parts of a tensor to
  /// the ranks of another role, or receives them. `layout`: of the current class's parts.
  void send_to(program::RoleId to, BufferId from, TensorId tensor, const Layout& layout);
  void receive_from(program::RoleId from, BufferId to, TensorId tensor, const Layout& layout);
  /// Returns the type of the current class's part of a tensor.
  TensorType local(const TensorType& type, const Layout& layout) const;
  /// Adds a shift: sends a buffer to the rank `offset` further along the axis, and receives from
  /// the rank on the other side.
  void shift(const std::string& axis, int32_t offset, BufferId from, BufferId to);
  /// Adds a shift to the rank `there` further, from the rank `back` away.
  void shift(const std::string& axis, const Function& there, const Function& back, BufferId from,
             BufferId to);
  const TensorType& type(BufferId id) const { return program.classes[cls_].buffers[id].type; }

  /// Adds a table with a number per rank.
  program::TableId table(const Function& function);

  /// Adds costs, dependencies and the memory plan.
  void finish();

 private:
  PieceOffsets piece_offsets_of(TensorId tensor, const Layout& layout) const;
  void message(BufferId from, BufferId to, const program::PeerMap& there,
               const program::PeerMap& back);
  program::ClassId cls_ = 0;
  int32_t next_tag_ = 0;
};

/// Content of one rank's buffer of a tensor.
struct Copy {
  std::vector<double> values;
  std::vector<bool> held;
};
/// All copies of outputs, and of parameters and states after the step. The seed decides the random
/// values before it.
using Results = std::map<std::string, std::vector<Copy>>;
/// Returns random values of an input, parameter or state. Micro-batch kNone: an input of the step.
std::vector<std::byte> values_of(const graph::Tensor& tensor, int32_t micro_batch, uint64_t seed);
/// Runs the program on all ranks and returns its results. Unwritten arena memory is NaN.
Results run(const ProgramBuilder& builder, const program::Program& program, uint64_t seed);
/// Lowers the graph for one rank, runs it and returns its results.
Results run_alone(const ProgramBuilder& builder, uint64_t seed);
/// Runs the program task by task, every rank in a thread of its own, and compares every complete
/// value when it is written. Returns "" or the first one that differs. Throws Error if the program
/// does not run.
std::string run_watched(const ProgramBuilder& builder, const program::Program& program,
                        const ExpectedOutputs& values, uint64_t seed);
/// Returns "" if all copies equal the wanted ones up to 1e-10, relative, and cover every element.
std::string difference(const Results& got, const Results& want);

/// Returns one node of devices with 1 TFLOP/s (f64), known hosts, and links of 10 GB/s.
cost::Cluster one_node(int32_t ranks);

/// A program, and the kinds of mutation that must be well represented among its mutants.
struct ProgramCase {
  std::string name;
  std::function<ProgramBuilder()> make;
  std::vector<std::string> kinds{};
};

/// Expects that each program is proven, equals one rank at every complete value, and is simulated.
void expect_proven_run_simulated(std::span<const ProgramCase> cases);
/// Expects that each mutant is refused, or equals one rank at every complete value. Prints the seed
/// of a failure. Variables of the environment:
///   HOCKET_MUTANTS=200 HOCKET_SEED=S: how many mutants of each, and which
///   HOCKET_RUN_REFUSED=1: runs those refused for their values, too, and counts which give the same
void expect_mutants_refused_or_equal(std::span<const ProgramCase> cases);

}  // namespace hocket::test
