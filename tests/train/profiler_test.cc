// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Times of a profile: the tasks timed, and that slow first passes do not count.
#include "train/profiler.h"

#include <gtest/gtest.h>

#include <unistd.h>

#include <atomic>
#include <chrono>
#include <numeric>
#include <thread>

#include "base/file.h"
#include "base/glob.h"
#include "kernels/backend.h"
#include "ops/op.h"
#include "program/finalize.h"
#include "tests/compare_util.h"

namespace hocket::train {
namespace {

void sleep_ms(int ms) { std::this_thread::sleep_for(std::chrono::milliseconds(ms)); }

std::atomic<int> zeros = 0;

/// Backend named `name`. `zero` takes fifty times longer in its first two passes than later; every
/// other op takes 4 ms.
class Timed : public kernels::Backend {
 public:
  explicit Timed(std::string name) : name_(std::move(name)) {}
  std::string describe() const override { return name_; }
  kernels::KernelFn find(std::string_view op, kernels::Device,
                         const kernels::OperandTypes&) const override {
    if (op == "zero") return [](const kernels::KernelArgs&) { sleep_ms(++zeros > 2 ? 2 : 100); };
    return [](const kernels::KernelArgs&) { sleep_ms(4); };
  }
  void enter_thread(int) override {}

 private:
  std::string name_;
};

/// One task of each kind, from and to buffers of this type.
void add_task(program::Program& p, const std::string& op, const graph::Attrs& attrs,
              std::vector<program::BufferId> in, const graph::TensorType& type) {
  program::RankClass& c = p.classes[0];
  program::Kind kind;
  kind.op = op;
  kind.attrs = attrs;
  kind.in.assign(in.size(), type);
  kind.out = {type};
  const ops::Cost cost = ops::cost_of(ops::find(op), {kind.attrs, kind.in, kind.out});
  kind.flops = cost.flops;
  kind.bytes = cost.bytes;
  program::Buffer b;
  b.type = type;
  c.buffers.push_back(b);
  program::Task t;
  t.kind = p.intern(std::move(kind));
  t.in = std::move(in);
  t.out = {c.buffers.size() - 1};
  c.tasks.push_back(std::move(t));
}

engine::Run small_run(const std::vector<std::string>& set) {
  return engine::parse_run(
      "model: {config: {model_type: llama, vocab_size: 32, hidden_size: 8, num_hidden_layers: 1, "
      "num_attention_heads: 2, num_key_value_heads: 1, head_dim: 4, intermediate_size: 8}}\n"
      "plan: {threads_per_rank: 1}\n",
      "test", set);
}

/// A program of two tasks.
engine::Compiled zero_and_copy(const engine::Run& run) {
  const graph::TensorType type{graph::DType::f64, {4}};
  engine::Compiled compiled;
  compiled.tokens_per_step = run.config.train.seq_len;
  compiled.reference.input("tokens", {graph::DType::i32, {run.config.train.seq_len}});
  compiled.program.roles = {{"all", {{{"pp", 1}, {"edp", 1}, {"ep", 1}}}}};
  compiled.program.classes.resize(1);
  add_task(compiled.program, "zero", {{"type", std::string("f64[4]")}}, {}, type);
  add_task(compiled.program, "copy", {}, {0}, type);
  program::finalize(compiled.program);
  return compiled;
}

TEST(Profiler, WarmUpDoesNotCount) {
  const engine::Run run = small_run({});
  ProfileOptions options;
  options.seconds = 0;
  zeros = 0;
  const cost::Profile p =
      profile(run, zero_and_copy(run), std::make_shared<Timed>("kernels that sleep"), options);
  EXPECT_EQ(zeros, 2 + 5);
  ASSERT_EQ(p.tasks.size(), 2u);
  for (const cost::TimedTask& task : p.tasks) {
    EXPECT_GE(task.ns, 2000000);
    EXPECT_LT(task.ns, 50000000);
    // Two slow passes of seven would lie beyond the upper quartile.
    EXPECT_LT(task.spread, 20) << task.key;
  }
}

/// Timings are kept for the kernels that they were taken with: others are timed anew.
TEST(Profiler, TimesOtherKernelsAgain) {
  char name[] = "/tmp/hocket_profiler_test.XXXXXX";
  const std::string dir = ::mkdtemp(name);
  const engine::Run run = small_run({"output.dir=" + dir});
  const engine::Compiled compiled = zero_and_copy(run);
  ProfileOptions options;
  options.seconds = 0;
  /// Runs of `zero`, and the kernels that the result is of.
  const auto timed_with = [&](const char* kernels) {
    zeros = 0;
    const cost::Profile p = profile_for(run, compiled, std::make_shared<Timed>(kernels), options);
    EXPECT_EQ(p.machine.at("backend"), kernels);
    return zeros.load();
  };
  EXPECT_EQ(timed_with("first"), 2 + 5);
  EXPECT_EQ(timed_with("first"), 0);
  EXPECT_EQ(timed_with("second"), 2 + 5);
  EXPECT_EQ(timed_with("second"), 0);
  remove_tree(dir);
}

/// A rank that emulates the others gives them rows by their tokens. Copies of its own rows would
/// exceed the capacity of any rank, and an expert fewer on a rank is no expert chosen twice.
TEST(Profiler, EmulatesRanksOfUnequalSize) {
  for (const char* plan : {"dp: 4, ep: 4, dp_samples: [5, 1, 1, 1], moe_chunks: 3",
                           "dp: 4, ep: 4, tp: 2, etp: 2, sequence_parallel: true"}) {
    const engine::Run run = engine::parse_run(
        "model: {config: {model_type: qwen3_moe, vocab_size: 64, hidden_size: 8, "
        "num_hidden_layers: 1, num_attention_heads: 2, num_key_value_heads: 2, head_dim: 4, "
        "intermediate_size: 8, rms_norm_eps: 1.0e-6, rope_theta: 10000.0, "
        "max_position_embeddings: 64, hidden_act: silu, num_experts: 4, num_experts_per_tok: 2, "
        "moe_intermediate_size: 4, norm_topk_prob: true, decoder_sparse_step: 1, "
        "mlp_only_layers: []}}\n"
        "train: {global_batch: 32, seq_len: 3}\nplan: {threads_per_rank: 1, " +
            std::string(plan) + "}\n",
        "test", {});
    ProfileOptions options;
    options.seconds = 0;
    const cost::Profile p = profile(run, engine::compile(run), kernels::cpu_backend(), options);
    EXPECT_GT(p.tasks.size(), 10u) << plan;
  }
}

/// Positions select the keys that attention takes. A single rank receives the host's positions in
/// place of the other ranks' positions, in collectives or messages.
TEST(Profiler, PositionsComeInMessages) {
  const std::string experts =
      ", num_experts: 4, num_experts_per_tok: 2, moe_intermediate_size: 4, norm_topk_prob: true, "
      "decoder_sparse_step: 1, mlp_only_layers: []";
  for (const std::string family : {"llama", "qwen3_moe"}) {
    for (const std::string way :
         {"native", "ring", "halving_doubling", "hierarchical", "ho_ring"}) {
      if (family == "llama" && way != "native" && !test::is_long()) continue;
      const engine::Run run = engine::parse_run(
          "model: {config: {model_type: " + family +
              ", vocab_size: 64, hidden_size: 16, num_hidden_layers: 1, num_attention_heads: 4, "
              "num_key_value_heads: 4, head_dim: 4, intermediate_size: 8, "
              "max_position_embeddings: 64" +
              (family == "llama" ? "" : experts) +
              "}}\ntrain: {global_batch: 4, seq_len: 24}\n"
              "plan: {cp: 4, ranks_per_node: 2, threads_per_rank: 1, cp_comm_type: a2a, "
              "all_gather: " +
              way + "}\n",
          "test", {});
      SCOPED_TRACE(family + " " + way);
      ProfileOptions options;
      options.seconds = 0;
      const cost::Profile p = profile(run, engine::compile(run), kernels::cpu_backend(), options);
      EXPECT_GT(p.tasks.size(), 10u);
    }
  }
}

TEST(Profiler, SeesHowRowsAreRouted) {
  // Tasks on routed rows count with balanced experts, and the profile holds the real routing.
  const engine::Run run = engine::parse_run(
      "model: {config: {model_type: qwen3_moe, vocab_size: 64, hidden_size: 16, "
      "num_hidden_layers: 3, num_attention_heads: 2, num_key_value_heads: 1, head_dim: 8, "
      "intermediate_size: 32, moe_intermediate_size: 16, num_experts: 4, num_experts_per_tok: 2, "
      "max_position_embeddings: 64, mlp_only_layers: [0]}}\n"
      "train: {global_batch: 4, seq_len: 32}\n"
      "plan: {dp: 2, ep: 2, threads_per_rank: 1}\n",
      "test", {});
  const engine::Compiled compiled = engine::compile(run);
  ProfileOptions options;
  options.seconds = 0;
  const cost::Profile profile = train::profile(run, compiled, kernels::cpu_backend(), options);
  ASSERT_EQ(profile.routing.size(), 2u);  // layers with experts
  for (const std::vector<int64_t>& rows : profile.routing) {
    ASSERT_EQ(rows.size(), 4u);
    // The tokens of one rank, two experts each.
    EXPECT_EQ(std::accumulate(rows.begin(), rows.end(), int64_t{0}), 2 * 32 * 2);
  }
  const double times = cost::busiest(profile, 2);
  EXPECT_GE(times, 1);
  EXPECT_LE(times, 2);
  EXPECT_EQ(cost::busiest(profile, 4), 1);
}

}  // namespace
}  // namespace hocket::train
