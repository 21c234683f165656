// SPDX-License-Identifier: Apache-2.0
// Emulation of a run: durations of the cost model, bytes of the emulated run, and refusals.
#include "engine/emulate.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/error.h"
#include "base/file.h"
#include "engine/params.h"

namespace hocket::engine {
namespace {

const char* const kText =
    "model: {config: {model_type: llama, vocab_size: 32, hidden_size: 16, num_hidden_layers: 2, "
    "num_attention_heads: 2, num_key_value_heads: 2, head_dim: 8, intermediate_size: 32, "
    "max_position_embeddings: 256}}\n"
    "train: {global_batch: 4, seq_len: 8}\n"
    "plan: {tp: 2, pp: 2, threads_per_rank: 1}\n";

class Emulation : public ::testing::Test {
 protected:
  void SetUp() override {
    cluster_ = ::testing::TempDir() + "emulated-cluster.yaml";
    write("1GFLOP/s");
  }
  void TearDown() override { std::filesystem::remove(cluster_); }
  void write(const std::string& flops, const std::string& heterogeneous = "") const {
    write_file_atomic(cluster_,
                      "name: slow\nnodes: 2\ndevices_per_node: 2\n"
                      "device: {name: slow one, memory: {value: 1GiB}, "
                      "memory_bandwidth: {value: 1GB/s}, launch: {value: 300us}, "
                      "peak: {f32: {value: " +
                          flops +
                          "}, f64: {value: 1GFLOP/s}}, efficiency: {matmul: {value: 1}, "
                          "attention: {value: 1}, memory: {value: 1}}}\n"
                          "links: {intra: {latency: {value: 1us}, bandwidth: {value: 1GB/s}}, "
                          "inter: {latency: {value: 1us}, bandwidth: {value: 1GB/s}}}\n" +
                          heterogeneous);
  }
  engine::Run run(std::vector<std::string> more) const {
    more.insert(more.begin(), "emulate.cluster=" + cluster_);
    return parse_run(kText, "test", more);
  }
  std::string refusal(const std::vector<std::string>& more) const {
    try {
      const engine::Run refused = run(more);
      emulate(refused, compile(refused).program);
    } catch (const Error& e) {
      EXPECT_EQ(e.exit_code(), 2);
      return e.what();
    }
    return "";
  }

  std::string cluster_;
};

TEST_F(Emulation, DurationsAndBytesAreThoseOfTheEmulatedRun) {
  const engine::Run own = run({});
  const program::Program program = compile(own).program;
  const auto same = emulate(own, program);
  const auto larger = emulate(run({"emulate.set=[train.seq_len=32]"}), program);
  const cost::CostModel costs = emulated_costs(own);
  int messages = 0;
  for (size_t c = 0; c < program.classes.size(); ++c) {
    const program::ClassId cls = c;
    for (size_t i = 0; i < program.classes[cls].tasks.size(); ++i) {
      const program::Task& task = program.classes[cls].tasks[i];
      const program::Kind& kind = program.kind(task);
      if (program::is_communication(kind)) {
        EXPECT_EQ(same->tasks[c][i].min_ns, 0);
        EXPECT_EQ(same->tasks[c][i].traffic, 1);
        const bool activation = task.phase == program::Phase::forward && kind.bytes > 64;
        EXPECT_EQ(larger->tasks[c][i].traffic, activation ? 4 : larger->tasks[c][i].traffic);
        messages += activation;
      } else {
        EXPECT_EQ(same->tasks[c][i].min_ns, costs.work(kind, task.accumulate.bits()).ns);
        EXPECT_GE(larger->tasks[c][i].min_ns, same->tasks[c][i].min_ns);
      }
    }
  }
  EXPECT_GT(messages, 0);
  EXPECT_EQ(emulate(parse_run(kText, "test", {}), program), nullptr);
}

TEST_F(Emulation, TimedTasksLastAsLongAsInTheProfile) {
  const program::Program program = compile(run({})).program;
  const cost::ProfileTarget target = cost::distinct_tasks(program).at(0);
  const program::Kind& kind = program.kinds[target.kind];
  cost::Profile profile;
  profile.device = "slow one";
  profile.tasks.push_back(
      {.key = target.key, .op = kind.op, .dtype = "f32", .bytes = kind.bytes, .ns = 777'000'000});
  const std::string path = ::testing::TempDir() + "emulated-profile.json";
  write_file_atomic(path, cost::to_json(profile));
  const auto timed = emulate(run({"emulate.profile=" + path}), program);
  EXPECT_EQ(timed->tasks[target.cls][target.task].min_ns, 777'000'000);
  std::filesystem::remove(path);
}

TEST_F(Emulation, RanksOfAHeterogeneousClusterHaveTheirOwnDurations) {
  write("1GFLOP/s", "heterogeneous_nodes: [{first: 1, speed: 0.25}]\n");
  const engine::Run own = run({});
  const program::Program program = compile(own).program;
  const auto emulated = emulate(own, program);
  const cost::CostModel costs = emulated_costs(own);
  int longer = 0;
  for (int32_t rank = 0; rank < program.num_ranks(); ++rank) {
    const program::ClassId cls = program.class_of(rank);
    for (size_t i = 0; i < program.classes[cls].tasks.size(); ++i) {
      const program::Task& task = program.classes[cls].tasks[i];
      if (program::is_communication(program.kind(task))) continue;
      const int64_t ns = emulated->min_ns(rank, cls.value(), i);
      const size_t kind = rank / 2;  // of its node
      EXPECT_EQ(ns, costs.work(program.kind(task), task.accumulate.bits(), kind).ns);
      longer += ns > emulated->tasks[cls.value()][i].min_ns;
    }
  }
  EXPECT_GT(longer, 0);
}

TEST_F(Emulation, ChangesNoBitAndLastsAsLong) {
  const auto losses = [](const engine::Run& run) {
    runtime::LocalRanks ranks = local_ranks(run);
    Compiled compiled = compile(run);
    const runtime::Store store(ranks);
    initialise(compiled.reference, compiled.program, 1, store);
    auto emulated = emulate(run, compiled.program);
    Session session(std::move(compiled), store, std::move(emulated));
    std::vector<double> losses;
    for (int64_t step = 1; step <= 2; ++step) {
      Batch batch(run.config.train.global_batch, run.config.train.seq_len);
      for (int64_t r = 0; r < batch.rows; ++r) {
        const data::SequenceOut row = batch.row(r);
        for (size_t i = 0; i < row.tokens.size(); ++i) {
          row.tokens[i] = static_cast<int32_t>((r + static_cast<int64_t>(i) * 7) % 32);
          row.targets[i] = static_cast<int32_t>((r + static_cast<int64_t>(i + 1) * 7) % 32);
          row.positions[i] = static_cast<int32_t>(i);
        }
      }
      batch.loss_scale = 1.0 / static_cast<double>(batch.num_targets());
      batch.hyper = hyper_of(run.config.optimizer, run.config.train.lr, step);
      session.feed(batch);
      session.step();
      losses.push_back(session.loss());
    }
    if (session.emulated()) {
      for (int32_t rank : ranks.ids()) {
        const auto& times = session.run().executor(rank).times();
        const auto& tasks = session.emulated()->tasks[session.program().class_of(rank).value()];
        for (size_t i = 0; i < times.size(); ++i) {
          EXPECT_GE(times[i].end_ns - times[i].start_ns, tasks[i].min_ns);
        }
      }
      EXPECT_GT(held_time(session).held_s, 0.05);
    }
    return losses;
  };
  EXPECT_EQ(losses(run({"emulate.set=[train.seq_len=32]"})), losses(parse_run(kText, "test", {})));
}

TEST_F(Emulation, RefusesUnsuitableRuns) {
  const auto expect = [&](const std::vector<std::string>& more, const std::string& what) {
    const std::string said = refusal(more);
    EXPECT_NE(said.find(what), std::string::npos) << said;
  };
  expect({"emulate.set=[train.seq_len=4]"}, "expected at least");
  expect({"emulate.set=[plan.micro_batch=2]"}, "another program");
  expect({"emulate.set=[plan.sequence_parallel=true]"}, "another program");
  expect({"emulate.set=[train.seq_lem=4]"}, "unknown key 'train.seq_lem'");
  expect({"plan.collectives=c10d"}, "expected own");
  expect({"emulate.profile=none.json"}, "none.json");
  expect({"emulate.cluster=none.yaml"}, "none.yaml");
  write("1kFLOP/s");
  expect({"plan.timeout_s=1"}, "expected less than plan.timeout_s");
  for (const char* alone : {"emulate.set=[train.seq_len=16]", "emulate.profile=p.json"}) {
    EXPECT_THROW(parse_run(kText, "test", {alone}), Error) << alone;
  }
}

TEST_F(Emulation, ReadsTheFormerSectionTimed) {
  const engine::Run former = parse_run(kText, "test", {"timed.cluster=" + cluster_});
  EXPECT_EQ(former.config.emulate.cluster, cluster_);
  const std::string section = std::string(kText) + "timed: {cluster: '" + cluster_ + "'}\n";
  EXPECT_EQ(parse_run(section, "test", {}).config.emulate.cluster, cluster_);
}

TEST_F(Emulation, DescribesTheDevice) {
  const std::string text = emulation_text(run({"emulate.set=[train.seq_len=32]"}));
  for (const char* part : {"emulated: ", "32 tokens", "slow one", "not measured compute"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
  EXPECT_EQ(emulation_text(parse_run(kText, "test", {})), "");
}

}  // namespace
}  // namespace hocket::engine
