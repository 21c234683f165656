// SPDX-License-Identifier: Apache-2.0
// Faults made by hand: the verdict names the rule, the task and the reason.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "check/check.h"
#include "ops/op.h"
#include "program/finalize.h"
#include "tests/check/refuse_util.h"

namespace hocket::check {
namespace {

using program::Lane;
using program::Program;
using program::RankClass;
using program::Task;
using test::check_values;
using test::erase;
using test::expect_refused;
using test::find;
using test::make;
using test::task;

TEST(Refuse, MissingAllReduce) {
  test::Case c = make(1, 2, 1, 2);
  // Without the reduction of a gradient, its reader has a partial input.
  erase(c.program, 0, find(c.program, 0, "all_reduce"));
  expect_refused(check(c.program, c.graph), "layout-legal", {"sumsq", "edp:P"});
}

TEST(Refuse, AllReduceTwice) {
  test::Case c = make(1, 2, 1, 1);
  RankClass& cls = c.program.classes[0];
  const int32_t at = find(c.program, 0, "all_reduce");
  cls.tasks.insert(cls.tasks.begin() + at, cls.tasks[at]);
  for (size_t i = static_cast<size_t>(at) + 1; i < cls.tasks.size(); ++i) {
    for (program::TaskId& d : cls.tasks[i].deps) {
      d = d >= at ? d + 1 : d;
    }
  }
  expect_refused(check(c.program, c.graph), "reduce-replicated",
                 {"all_reduce", "2 times the value"});
}

TEST(Refuse, AllReduceOverTheWrongAxis) {
  test::Case c = make(1, 4, 2, 1);
  Task& t = task(c.program, 0, "all_reduce");
  const auto& axes = c.program.groups[t.group].axes;
  ASSERT_EQ(axes.size(), 2u);
  t.group = c.program.intern(program::group_over({axes[0]}));
  const Verdict v = check(c.program, c.graph);
  ASSERT_FALSE(v.ok());
  EXPECT_EQ(v.problems[0].problem_class, ProblemClass::value);
}

TEST(Refuse, MicroBatchMissingFromAGradient) {
  test::Case c = make(1, 1, 1, 3);
  RankClass& cls = c.program.classes[0];
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    const Task& t = cls.tasks[i];
    if (c.program.kind(t).op != "linear_dw" || t.micro_batch != 1 || t.layer != 1) continue;
    erase(c.program, 0, static_cast<int32_t>(i));
    break;
  }
  expect_refused(check(c.program, c.graph), "not-in-graph",
                 {"sumsq", "incomplete", "lacks linear_dw L1 mb1"});
}

TEST(Refuse, MicroBatchTwiceInAGradient) {
  test::Case c = make(1, 1, 1, 3);
  RankClass& cls = c.program.classes[0];
  Task* second = nullptr;
  for (Task& t : cls.tasks) {
    if (c.program.kind(t).op == "linear_dw" && t.micro_batch == 2 && !second) {
      second = &t;
    }
  }
  const auto origin = second->origin;
  for (const Task& t : cls.tasks) {
    if (t.origin == origin && t.micro_batch == 1) {
      second->in = t.in;
    }
  }
  // Its memory may be reused by then; only the value matters here.
  expect_refused(check_values(c), "not-in-graph", {"linear_dw", "mb2", "mb1", "too often"});
}

TEST(Refuse, WrongMicroBatchIsTracedToItsOrigin) {
  test::Case c = make(1, 1, 1, 3);
  Task& t = task(c.program, 0, "embedding", 2);
  t.in[0] = task(c.program, 0, "embedding", 0).in[0];
  const Verdict v = check_values(c);
  ASSERT_FALSE(v.ok());
  EXPECT_EQ(v.problems[0].task.task, find(c.program, 0, "embedding", 2)) << to_text(v);
}

/// A program with more ranks, each with half a sequence of the reference.
TEST(Refuse, SequencesCutBetweenRanks) {
  parallel::Plan two, four;
  two.dp = 2;
  four.dp = 4;
  const test::Case whole = test::make_case(test::dense(2, false), two, 8);
  Program p = test::make_case(test::dense(2, false), four, 4).program;
  // Its attributes claim the sequence length of the reference.
  for (program::Kind& kind : p.kinds) {
    if (!kind.attrs.has("seq")) continue;
    kind.attrs.set("seq", int64_t{8});
    const ops::Cost cost = ops::cost_of(ops::find(kind.op), {kind.attrs, kind.in, kind.out});
    kind.flops = cost.flops;
  }
  const Verdict v = check(p, whole.graph);
  expect_refused(v, "layout-legal", {"edp", "written by attention L0"});
  EXPECT_EQ(v.problems[0].task.task, find(p, 0, "attention") + 1) << to_text(v);
  EXPECT_EQ(v.problems[0].related[0].task, find(p, 0, "attention")) << to_text(v);
  EXPECT_EQ(v.num_problems, 1) << to_text(v);
}

TEST(Refuse, KernelsWithoutCost) {
  for (const bool bytes : {false, true}) {
    test::Case c = make(1, 2, 2, 1);
    const int32_t first = find(c.program, 0, "grouped_linear");
    for (program::Kind& kind : c.program.kinds) {
      if (!ops::find_or_null(kind.op)) continue;
      if (bytes) {
        kind.bytes = 0;
      } else {
        kind.flops = 0;
      }
    }
    CheckOptions all;
    all.max_problems = 100;
    const Verdict v = check(c.program, c.graph, all);
    expect_refused(v, "cost-follows", {bytes ? "0 bytes" : "0 FLOPs", "linear L0"});
    // Includes kinds of experts: their work depends on the number of experts on all ranks.
    bool experts = false;
    for (const Problem& p : v.problems) {
      EXPECT_EQ(p.rule, "cost-follows") << p.text;
      experts |= p.task.task == first;
    }
    EXPECT_TRUE(experts) << to_text(v);
  }
}

TEST(Refuse, KernelWithTooMuchCost) {
  test::Case c = make(1, 2, 2, 1);
  Task& t = task(c.program, 0, "grouped_linear", 1);
  program::Kind kind = c.program.kind(t);
  kind.flops *= 1 + 1e-6;
  t.kind = c.program.intern(std::move(kind));
  const Verdict v = check(c.program, c.graph);
  expect_refused(v, "cost-follows", {"grouped_linear", "FLOPs"});
  EXPECT_EQ(v.problems[0].task.task, find(c.program, 0, "grouped_linear", 1));
}

TEST(Refuse, WrongScale) {
  test::Case c = make(1, 2, 2, 1);
  Task& t = task(c.program, 0, "balance_loss");
  program::Kind kind = c.program.kind(t);
  kind.attrs.set("coef", kind.attrs.f("coef") * 2);
  t.kind = c.program.intern(kind);
  expect_refused(check(c.program, c.graph), "not-in-graph",
                 {"balance_loss", "attributes are", "coef"});
}

TEST(Refuse, SizesOfAnotherRouting) {
  test::Case c = make(1, 4, 2, 2);
  Task& a = task(c.program, 0, "all_to_all", 0);
  RankClass& cls = c.program.classes[0];
  for (Task& t : cls.tasks) {
    if (c.program.kind(t).op == "all_to_all" && t.in[1] != a.in[1]) {
      t.in[1] = a.in[1];
      break;
    }
  }
  expect_refused(check_values(c), "exchange-sizes", {"all_to_all", "routing"});
}

TEST(Refuse, ExchangeInTheWrongDirection) {
  test::Case c = make(1, 2, 2, 1);
  Task& t = task(c.program, 0, "all_to_all", 1);
  program::Kind kind = c.program.kind(t);
  const int64_t from = kind.attrs.i("from"), to = kind.attrs.i("to");
  kind.attrs.set("from", to);
  kind.attrs.set("to", from);
  t.kind = c.program.intern(kind);
  expect_refused(check(c.program, c.graph), "types-follow", {"all_to_all", "expected i64[2,4]"});
}

TEST(Refuse, TiedGradientNotSummedOverStages) {
  test::Case c = make(2, 1, 1, 2, true);
  // The first reduction over stages is the tied gradient's; the norms' comes later.
  for (int32_t cls = 0; cls < 2; ++cls) {
    erase(c.program, cls, find(c.program, cls, "all_reduce"));
  }
  expect_refused(check(c.program, c.graph), "not-in-graph", {"lacks"});
}

TEST(Refuse, MissingUpdate) {
  test::Case c = make(1, 1, 1, 1);
  erase(c.program, 0, find(c.program, 0, "adamw", 2));
  expect_refused(check(c.program, c.graph), "final-value", {"no task has computed adamw"});
}

/// Returns whether the problem names, or relates to, a task of the class that touches the buffer.
bool names_user_of(const Problem& problem, const Program& p, int32_t cls,
                   program::BufferId buffer) {
  std::vector<TaskRef> named = problem.related;
  named.push_back(problem.task);
  return std::any_of(named.begin(), named.end(), [&](TaskRef ref) {
    if (ref.cls != cls || ref.task < 0) return false;
    const Task& user = p.classes[cls].tasks[ref.task];
    return std::find(user.in.begin(), user.in.end(), buffer) != user.in.end() ||
           std::find(user.out.begin(), user.out.end(), buffer) != user.out.end();
  });
}

TEST(Refuse, ResultInAnotherBuffer) {
  test::Case c = make(1, 2, 2, 1);
  const int32_t loss = find(c.program, 0, "balance_loss");
  RankClass& cls = c.program.classes[0];
  program::BufferId& to = cls.tasks[loss].out[0];
  cls.buffers.push_back(cls.buffers[to]);
  cls.buffers.back().kind = program::BufferKind::step;
  cls.buffers.back().name.clear();
  cls.buffers.back().layout = {};
  cls.buffers.back().micro_batch = program::kNone;
  to = cls.buffers.size() - 1;
  const Verdict v = check_values(c);
  expect_refused(v, "final-value", {"no task having written it", "is computed by balance_loss"});
  const std::vector<TaskRef>& related = v.problems[0].related;
  EXPECT_NE(std::find(related.begin(), related.end(), TaskRef{0, loss}), related.end())
      << to_text(v);
}

TEST(Refuse, SumWithoutAnAddend) {
  // The gradient of tied embeddings sums both uses before it is reduced and read. The refusal is at
  // the reader, with the holders of the inputs of the missing task as related tasks.
  test::Case c = make(1, 2, 1, 2, true);
  const int32_t last = find(c.program, 0, "embedding_dw", 1);
  const program::BufferId gradient = c.program.classes[0].tasks[last].in[1];
  erase(c.program, 0, last);
  const Verdict v = check(c.program, c.graph);
  expect_refused(v, "not-in-graph", {"lacks embedding_dw", "no task has computed embedding_dw"});
  EXPECT_TRUE(names_user_of(v.problems[0], c.program, 0, gradient)) << to_text(v);
}

TEST(Refuse, NormWithoutAParameter) {
  // Squares are summed over the stages: the other stage lacks those of a parameter that it does not
  // have. The refusal names the holder of its gradient, although that is a partial sum by then.
  parallel::Plan plan;
  plan.pp = 2;
  plan.dp = 2;
  plan.pp_chunks = 2;
  plan.pp_schedule = "interleaved";
  plan.num_micro_batches = 2;
  plan.shard.params = parallel::Shard::all;
  const test::Case good = test::make_case(test::dense(4, false), plan);
  int seen = 0;
  for (int n = 0;; ++n) {
    test::Case c = good;
    const auto& tasks = c.program.classes[0].tasks;
    const auto squares = std::count_if(
        tasks.begin(), tasks.end(), [&](const Task& t) { return c.program.kind(t).op == "sumsq"; });
    if (n >= squares) break;
    const int32_t at = find(c.program, 0, "sumsq", n);
    const program::BufferId gradient = tasks[at].in[0];
    erase(c.program, 0, at);
    const Verdict v = check(c.program, c.graph);
    ASSERT_FALSE(v.ok());
    if (v.problems[0].rule == "race") continue;  // other tasks waited for the removed one
    EXPECT_TRUE(names_user_of(v.problems[0], c.program, 0, gradient)) << n << "\n" << to_text(v);
    ++seen;
  }
  EXPECT_GT(seen, 4);
}

TEST(Refuse, UpdateMissingOnOneStage) {
  // Tied embeddings are on both stages; an update on stage 1 does not replace that on stage 0.
  test::Case c = make(2, 1, 1, 1, true);
  const auto& tasks = c.program.classes[0].tasks;
  int32_t update = -1;
  program::BufferId weight = program::kNone;
  for (size_t i = 0; i < tasks.size(); ++i) {
    if (c.program.kind(tasks[i]).op != "adamw") continue;
    const program::BufferId to = tasks[i].out[0];
    if (c.program.classes[0].buffers[static_cast<size_t>(to)].name != "model.embed_tokens.weight") {
      continue;
    }
    update = static_cast<int32_t>(i);
    weight = to;
  }
  ASSERT_GE(update, 0);
  const std::vector<program::BufferId> read = tasks[static_cast<size_t>(update)].in;
  erase(c.program, 0, update);
  const Verdict v = check(c.program, c.graph);
  expect_refused(v, "final-value", {"no task of class 0 has computed adamw"});
  const bool named = std::any_of(read.begin(), read.end(), [&](program::BufferId buffer) {
    return buffer != weight && names_user_of(v.problems[0], c.program, 0, buffer);
  });
  EXPECT_TRUE(named) << to_text(v);
}

TEST(Refuse, ParameterUpdatedTwice) {
  test::Case c = make(1, 1, 1, 1);
  RankClass& cls = c.program.classes[0];
  cls.tasks.push_back(task(c.program, 0, "adamw", 1));
  expect_refused(check(c.program, c.graph), "not-in-graph", {"adamw"});
}

TEST(Refuse, LostMessage) {
  test::Case c = make(2, 1, 1, 2);
  erase(c.program, 0, find(c.program, 0, "send", 1));
  expect_refused(check(c.program, c.graph), "recv-unmatched", {"recv", "class 0"});
  c = make(2, 1, 1, 2);
  erase(c.program, 1, find(c.program, 1, "recv", 1));
  expect_refused(check(c.program, c.graph), "send-unmatched", {"send", "class 1"});
}

TEST(Refuse, MissingDependencyIsARace) {
  test::Case c = make(2, 1, 1, 2);
  for (Task& t : c.program.classes[1].tasks) {
    for (size_t k = 0; k < t.deps.size(); ++k) {
      if (c.program.kind(c.program.classes[1].tasks[t.deps[k]]).op == "recv") {
        t.deps.erase(t.deps.begin() + static_cast<int64_t>(k));
        expect_refused(check(c.program, c.graph), "race",
                       {"reads", "nothing orders it after recv"});
        return;
      }
    }
  }
  FAIL();
}

TEST(Refuse, OverlappingMemory) {
  test::Case c = make(1, 1, 1, 1);
  Task& t = task(c.program, 0, "add");
  auto& buffers = c.program.classes[0].buffers;
  buffers[t.out[0]].offset = buffers[t.in[0]].offset;
  const Verdict v = check(c.program, c.graph);
  ASSERT_FALSE(v.ok());
  EXPECT_EQ(v.problems[0].task.task, find(c.program, 0, "add")) << to_text(v);
}

TEST(Refuse, WorkspaceOverAnInput) {
  test::Case c = make(1, 1, 1, 1);
  RankClass& cls = c.program.classes[0];
  const int32_t at = find(c.program, 0, "linear");
  Task& t = cls.tasks[at];
  ASSERT_GT(c.program.kind(t).workspace, 0);
  t.workspace = cls.buffers[t.in[0]].offset;
  expect_refused(check(c.program, c.graph), "race", {"linear", "puts its workspace over"});
}

/// Returns the first step buffer of class 0 that is ragged, or that is not.
program::Buffer& step_buffer(Program& p, bool ragged) {
  for (program::Buffer& b : p.classes[0].buffers) {
    if (b.kind == program::BufferKind::step && (b.expected_bytes != program::kNone) == ragged) {
      return b;
    }
  }
  ADD_FAILURE() << "no such buffer";
  return p.classes[0].buffers[0];
}

TEST(Refuse, DenseBufferThatExpectsLessThanItHolds) {
  test::Case c = make(1, 2, 2, 1);
  const Verdict good = check(c.program, c.graph);
  EXPECT_TRUE(good.ok()) << to_text(good);
  EXPECT_GE(good.ragged_factor, 1.25);
  EXPECT_LT(good.ragged_factor, 1.5);
  const auto at = &step_buffer(c.program, false) - c.program.classes[0].buffers.data();
  for (program::Buffer& b : c.program.classes[0].buffers) {
    if (b.kind == program::BufferKind::step && !b.type.routed()) {
      b.expected_bytes = 1;
    }
  }
  expect_refused(check(c.program, c.graph), "expected-routed",
                 {fmt::format("buffer {} ", at), "expects 1 bytes, but always holds"});
}

TEST(Refuse, InputThatExpectsLessThanItHolds) {
  test::Case c = make(1, 2, 2, 1);
  for (program::Buffer& b : c.program.classes[0].buffers) {
    if (b.kind == program::BufferKind::input) {
      b.expected_bytes = 4;
    }
  }
  expect_refused(check(c.program, c.graph), "expected-routed", {"input", "expects 4 bytes"});
}

TEST(Refuse, RaggedBufferThatExpectsLessThanEvenRouting) {
  test::Case c = make(1, 2, 2, 1);
  program::Buffer& b = step_buffer(c.program, true);
  const int64_t enough = b.expected_bytes;
  b.expected_bytes = enough / 2;
  expect_refused(check(c.program, c.graph), "expected-rows",
                 {"planned to hold", "even routing brings"});
  // With less headroom than lowering gives, the certificate prints the rest.
  b.expected_bytes = enough * 9 / 10;
  const Verdict v = check(c.program, c.graph);
  EXPECT_TRUE(v.ok()) << to_text(v);
  EXPECT_GE(v.ragged_factor, 1.0);
  EXPECT_LT(v.ragged_factor, 1.25);
}

TEST(Refuse, RoutedBufferOfAllExpertsThatExpectsLess) {
  // All experts are here, so the number of rows does not depend on the routing.
  test::Case c = make(1, 2, 2, 1);
  bool found = false;
  for (program::Buffer& b : c.program.classes[0].buffers) {
    if (b.kind != program::BufferKind::step || !b.type.routed() ||
        b.expected_bytes != program::kNone) {
      continue;
    }
    b.expected_bytes = b.type.bytes() / 2;
    found = true;
  }
  ASSERT_TRUE(found);
  expect_refused(check(c.program, c.graph), "expected-rows", {"all experts are here"});
}

TEST(Refuse, ProgramWithoutAMemoryPlan) {
  test::Case c = make(2, 1, 1, 1);
  for (RankClass& cls : c.program.classes) {
    cls.arena_bytes = 0;
    for (auto& b : cls.buffers) {
      b.offset = program::kNone;
    }
    for (Task& t : cls.tasks) {
      t.workspace = program::kNone;
    }
  }
  expect_refused(check(c.program, c.graph), "has-plan", {"class 0", "no memory plan"});
  CheckOptions between_passes;
  between_passes.allow_unplanned = true;
  const Verdict without = check(c.program, c.graph, between_passes);
  EXPECT_TRUE(without.ok());
  EXPECT_TRUE(without.memory.empty());
  const std::string memory_claim = "a rank needs at most the memory below";
  EXPECT_EQ(to_text(without).find(memory_claim), std::string::npos);
  EXPECT_EQ(to_text(without).find("memory of stage"), std::string::npos);
  // With a plan, the verdict has both.
  c = make(2, 1, 1, 1);
  const std::string planned = to_text(check(c.program, c.graph));
  EXPECT_NE(planned.find(memory_claim), std::string::npos);
  EXPECT_NE(planned.find("memory of stage 1"), std::string::npos);
  // A plan for some classes only is always refused.
  c = make(2, 1, 1, 1);
  for (auto& b : c.program.classes[1].buffers) {
    b.offset = program::kNone;
  }
  expect_refused(check(c.program, c.graph), "buffer-planned", {"class 1", "has no offset"});
  expect_refused(check(c.program, c.graph, between_passes), "buffer-planned", {"class 1"});
}

TEST(Refuse, BrokenIds) {
  for (int fault = 0; fault < 6; ++fault) {
    test::Case c = make(2, 1, 1, 1);
    Task& t = task(c.program, 0, "send");
    switch (fault) {
      case 0:
        t.in[0] = 100000;
        break;
      case 1:
        t.kind = -7;
        break;
      case 2:
        t.deps.push_back(-3);
        break;
      case 3:
        t.peer_axis = 9;
        break;
      case 4:
        t.group = 77;
        break;
      default:
        t.lane = static_cast<Lane>(99);
    }
    expect_refused(check(c.program, c.graph), "ids-in-range", {"task"});
  }
}

/// Returns a kind of a kernel with the cost of its op.
program::Kind compute_kind(std::string op, graph::Attrs attrs, std::vector<graph::TensorType> in,
                           std::vector<graph::TensorType> out) {
  program::Kind kind{std::move(op), std::move(attrs), std::move(in), std::move(out)};
  const ops::Cost cost = ops::cost_of(ops::find(kind.op), {kind.attrs, kind.in, kind.out});
  kind.flops = cost.flops;
  kind.bytes = cost.bytes;
  kind.workspace = cost.workspace;
  return kind;
}

/// Returns two stages that exchange one message each way; `swapped`: both receive before they send.
Program exchange(bool swapped) {
  Program p;
  p.roles = {{"all", {{{"pp", 2}}}}};
  graph::TensorType f{graph::DType::f32, {16}};
  const auto zero = p.intern(compute_kind("zero", {{"type", graph::to_string(f)}}, {}, {f}));
  const auto send = p.intern(program::communication_kind(comm::Id::send, {}, {f}, {}));
  const auto recv = p.intern(program::communication_kind(comm::Id::recv, {}, {}, {f}));
  const auto add = p.intern(compute_kind("add", {}, {f, f}, {f}));
  for (int32_t s = 0; s < 2; ++s) {
    RankClass c;
    c.box = program::Box::at(0, s);
    c.buffers.resize(3);
    for (program::Buffer& b : c.buffers) {
      b.type = f;
    }
    auto message = [&](bool receive) {
      Task t;
      t.kind = receive ? recv : send;
      t.lane = receive ? Lane::intra_rx : Lane::intra_tx;
      t.peer_axis = 0;
      t.peer = s == 0 ? 1 : -1;
      t.tag = receive ? 1 - s : s;
      (receive ? t.out : t.in) = {receive ? 1 : (swapped ? 2 : 0)};
      return t;
    };
    Task first;
    first.kind = zero;
    first.out = {0};
    Task sum;
    sum.kind = add;
    sum.in = {0, 1};
    sum.out = {2};
    c.tasks = swapped ? std::vector<Task>{first, message(true), sum, message(false)}
                      : std::vector<Task>{first, message(false), message(true), sum};
    p.classes.push_back(c);
  }
  program::finalize(p);
  return p;
}

TEST(Refuse, Deadlock) {
  Verdict good = check_structure(exchange(false));
  EXPECT_TRUE(good.ok()) << to_text(good);
  Verdict v = check_structure(exchange(true));
  expect_refused(v, "deadlock", {"recv", "receives from", "depends on", "class 1"});
  EXPECT_EQ(v.problems[0].ranks, (std::vector<int32_t>{0, 1}));
}

/// Returns a ring of `n` ranks: each sends its value to the next rank and receives that of the
/// previous rank. `after_the_send`: the receive waits for the send.
Program ring(int32_t n, bool after_the_send) {
  Program p;
  p.roles = {{"all", {{{"pp", 1}, {"edp", n}}}}};
  const graph::TensorType f{graph::DType::f32, {16}};
  const auto zero = p.intern(compute_kind("zero", {{"type", graph::to_string(f)}}, {}, {f}));
  RankClass c;
  c.buffers.resize(2);
  for (program::Buffer& b : c.buffers) {
    b.type = f;
  }
  Task make, send, recv;
  make.kind = zero;
  make.out = {0};
  send.kind = p.intern(program::communication_kind(comm::Id::send, {}, {f}, {}));
  send.lane = Lane::intra_tx;
  send.in = {0};
  recv.kind = p.intern(program::communication_kind(comm::Id::recv, {}, {}, {f}));
  recv.lane = Lane::intra_rx;
  recv.out = {1};
  send.peer_axis = recv.peer_axis = 1;
  send.tag = recv.tag = 0;
  send.peer = 1;
  recv.peer = -1;
  if (after_the_send) {
    recv.deps = {1};
  }
  c.tasks = {make, send, recv};
  p.classes.push_back(c);
  program::finalize(p);
  return p;
}

TEST(Refuse, RingThatNeedsEagerSends) {
  // Without the dependency every send meets the receive of the next rank.
  Verdict v = check_structure(ring(4, false));
  ASSERT_TRUE(v.ok()) << to_text(v);
  EXPECT_EQ(v.stuck_when_sends_wait, "");
  EXPECT_NE(to_text(v).find("whether a send completes alone or waits for its receiver"),
            std::string::npos)
      << to_text(v);
  // With the dependency, rendezvous sends wait for each other's receives around the ring.
  v = check_structure(ring(4, true));
  ASSERT_TRUE(v.ok()) << to_text(v);
  for (const char* words : {"send", "waits for its receiver", "depends on"}) {
    EXPECT_NE(v.stuck_when_sends_wait.find(words), std::string::npos) << v.stuck_when_sends_wait;
  }
  EXPECT_NE(to_text(v).find("every run ends if sends complete alone"), std::string::npos);
  bool assumed = false;
  for (const std::string& a : v.assumptions) {
    assumed |= a.starts_with("sends complete without");
  }
  EXPECT_TRUE(assumed) << to_text(v);
}

TEST(Refuse, ALongCycleIsNamedByItsFirstSixWaits) {
  // Eight ranks, each a class of its own: a cycle of sixteen waits.
  Program p = ring(8, true);
  for (int32_t rank = 7; rank > 0; --rank) {
    test::split_class(p, 0, 1, rank);
  }
  program::finalize(p);
  const Verdict v = check_structure(p);
  ASSERT_TRUE(v.ok()) << to_text(v);
  const std::string& text = v.stuck_when_sends_wait;
  int waits = 0;
  for (const char* why : {"waits for its receiver", "depends on"}) {
    for (size_t at = text.find(why); at != std::string::npos; at = text.find(why, at + 1)) {
      ++waits;
    }
  }
  EXPECT_EQ(waits, 6) << text;
}

TEST(Refuse, TwoGroupsOfTheSameRanks) {
  for (bool other_lane : {false, true}) {
    test::Case c = make(1, 2, 1, 1);
    ASSERT_EQ(c.program.roles[0].mesh.axes[2].size, 1);
    Task& t = task(c.program, 0, "all_reduce", 1);
    // The same ranks, with an axis of one rank in addition.
    c.program.groups.push_back(program::group_over({1, 2}));
    t.group = static_cast<int32_t>(c.program.groups.size()) - 1;
    if (other_lane) {
      t.lane = Lane::inter;
    }
    const Verdict v = check(c.program, c.graph);
    expect_refused(v, "group-once", {"all_reduce", "has the same ranks as group 0"});
    EXPECT_EQ(v.problems[0].task.task, find(c.program, 0, "all_reduce", 1));
  }
}

TEST(Refuse, LaneOfAnotherLink) {
  test::Case c = make(1, 2, 1, 1);
  task(c.program, 0, "all_reduce", 1).lane = Lane::inter;
  Verdict v = check(c.program, c.graph);
  expect_refused(v, "lane-recomputed", {"is in lane inter", "all ranks in one node", "lane intra"});
  EXPECT_EQ(v.problems[0].task.task, find(c.program, 0, "all_reduce", 1));
  // With one rank per node, messages inside a node become messages over the network.
  c = make(2, 1, 1, 1);
  c.program.ranks_per_node = 1;
  v = check(c.program, c.graph);
  expect_refused(v, "lane-recomputed",
                 {"send", "is in lane intra_tx", "1 ranks per node", "lane inter_tx"});
  expect_refused(v, "lane-recomputed", {"recv", "is in lane intra_rx", "lane inter_rx"});
  for (RankClass& cls : c.program.classes) {
    for (Task& t : cls.tasks) {
      if (t.lane == Lane::intra) {
        t.lane = Lane::inter;
      }
      if (t.lane == Lane::intra_tx) {
        t.lane = Lane::inter_tx;
      }
      if (t.lane == Lane::intra_rx) {
        t.lane = Lane::inter_rx;
      }
    }
  }
  v = check(c.program, c.graph);
  EXPECT_TRUE(v.ok()) << to_text(v);
}

TEST(Refuse, WrongPayload) {
  for (const char* op : {"all_reduce", "send", "recv"}) {
    test::Case c = make(2, 2, 1, 1);
    const int32_t cls = op == std::string("recv") ? 1 : 0;
    Task& t = task(c.program, cls, op);
    program::Kind kind = c.program.kind(t);
    const int64_t right = kind.bytes;
    kind.bytes = 0;
    t.kind = c.program.intern(kind);
    expect_refused(check(c.program, c.graph), "cost-recomputed",
                   {op, "has 0 bytes", "expected " + std::to_string(right)});
    kind.bytes = right;
    kind.flops = 1;
    t.kind = c.program.intern(kind);
    expect_refused(check(c.program, c.graph), "cost-recomputed", {op, "1 FLOPs"});
  }
}

TEST(Refuse, TypesThatDoNotFitTheGroup) {
  // Sizes of an exchange among two ranks, in a group of four.
  test::Case c = make(1, 4, 2, 1);
  Task& t = task(c.program, 0, "size_exchange");
  const int32_t at = find(c.program, 0, "size_exchange");
  t.group = c.program.intern(program::group_over({1, 2}));
  const Verdict v = check(c.program, c.graph);
  expect_refused(v, "types-follow", {"size_exchange", "among 4 ranks", "i64[4,8]", "i64[2,8]"});
  EXPECT_EQ(v.problems[0].task.task, at);
}

TEST(Refuse, CollectivesInDifferentOrder) {
  test::Case c = make(2, 1, 1, 1, true);
  // One stage exchanges the reductions of the tied gradient and of the norms.
  RankClass& cls = c.program.classes[0];
  std::vector<size_t> at;
  for (size_t i = 0; i < cls.tasks.size(); ++i) {
    if (c.program.kind(cls.tasks[i]).op == "all_reduce") {
      at.push_back(i);
    }
  }
  ASSERT_EQ(at.size(), 2u);
  Task& a = cls.tasks[at[0]];
  Task& b = cls.tasks[at[1]];
  std::swap(a.kind, b.kind), std::swap(a.in, b.in), std::swap(a.out, b.out);
  std::swap(a.group, b.group);
  const Verdict v = check(c.program, c.graph);
  ASSERT_FALSE(v.ok());
  bool named = false;
  for (const Problem& p : v.problems) {
    named |= c.program.kind(c.program.classes[p.task.cls].tasks[p.task.task]).op == "all_reduce";
  }
  EXPECT_TRUE(named) << to_text(v);
}

TEST(Refuse, MissingInputFromTheHost) {
  test::Case c = make(1, 2, 1, 1);
  for (auto& b : c.program.classes[0].buffers) {
    if (b.name == "tokens") {
      b.name = "tokenz";
    }
  }
  expect_refused(check(c.program, c.graph), "named-tensor", {"tokenz", "not a tensor"});
}

TEST(Refuse, UnknownOpAndWrongTypes) {
  test::Case c = make(1, 1, 1, 1);
  Task& t = task(c.program, 0, "swiglu");
  program::Kind kind = c.program.kind(t);
  kind.op = "swigloo";
  t.kind = c.program.intern(kind);
  expect_refused(check(c.program, c.graph), "known-op", {"swigloo"});
  c = make(1, 1, 1, 1);
  Task& u = task(c.program, 0, "linear");
  kind = c.program.kind(u);
  kind.out[0].dims.back() += 1;
  u.kind = c.program.intern(kind);
  expect_refused(check(c.program, c.graph), "types-follow", {"linear", "the kind says"});
}

/// A collective with more operands than OutputSet has places.
TEST(Check, CollectivesOfManyOperandsAreAccepted) {
  for (const int64_t layers : {8, 16}) {
    parallel::Plan plan;
    plan.dp = 2;
    plan.pp = 2;
    const test::Case c = test::make_case(test::dense(layers, true), plan, 8, 1 << 30);
    size_t most = 0;
    for (const program::Kind& kind : c.program.kinds) {
      most = std::max(most, kind.out.size());
    }
    EXPECT_GT(most, layers == 8 ? 32u : 64u);
    const Verdict v = check(c.program, c.graph);
    EXPECT_TRUE(v.ok()) << to_text(v);
    const Program back = program::parse_program(program::print(c.program));
    EXPECT_TRUE(back == c.program);
  }
}

/// A task with many outputs that accumulates into all that OutputSet can name.
TEST(Refuse, AccumulationOfACollective) {
  parallel::Plan plan;
  plan.dp = 2;
  test::Case c = test::make_case(test::dense(8, true), plan, 8, 1 << 30);
  for (Task& t : c.program.classes[0].tasks) {
    if (t.out.size() <= graph::OutputSet::kMaxOutputs) continue;
    t.accumulate = graph::OutputSet::of_bits(~0u);
    break;
  }
  expect_refused(check(c.program, c.graph), "accumulate-allowed", {"all_reduce", "0xffffffff"});
}

}  // namespace
}  // namespace hocket::check
