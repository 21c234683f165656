// SPDX-License-Identifier: Apache-2.0
// ctest: serial
// ctest: slow
// ctest: timeout=900
// Random plans on four processes over Gloo. In fp64 they equal one rank. With our own collectives
// they train to the bit as four threads do; with those of c10d they differ only by the order of
// sums. The test starts itself four times, and each process compares its own rank.
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <iostream>

#include "base/file.h"
#include "comm/process_world.h"
#include "engine/params.h"
#include "engine/processes.h"
#include "graph/names.h"
#include "kernels/backend.h"
#include "plan_util.h"
#include "program/memory.h"

namespace hocket::test::processes_test {
namespace {

constexpr int kRanks = 4;
constexpr int kSteps = 2;

int number_from(const char* variable, int otherwise) {
  const char* const text = std::getenv(variable);
  return text ? std::atoi(text) : otherwise;
}

void train_session(engine::Session& session, const engine::Run& run, uint64_t seed) {
  engine::initialise(session.graph(), session.program(), seed, session.store());
  for (int step = 0; step < kSteps; ++step) {
    session.feed(random_batch(session.compiled(), run, step, seed));
    session.step();
  }
}

/// Returns an emulated device that holds lanes a little longer and pads messages. Emulation must
/// not change a bit.
std::shared_ptr<const runtime::EmulatedDevice> emulate_something(const program::Program& program) {
  auto emulated = std::make_shared<runtime::EmulatedDevice>();
  for (const program::RankClass& cls : program.classes) {
    std::vector<runtime::EmulatedDevice::Task>& tasks = emulated->tasks.emplace_back();
    for (const program::Task& task : cls.tasks) {
      const bool alike =
          task.group == program::kNone || !program.crosses_classes(program.groups[task.group]);
      const auto bytes = static_cast<double>(program.kind(task).bytes % 7);
      tasks.push_back({20'000, alike ? 1 + bytes / 2 : 1});
    }
  }
  return emulated;
}

/// Trains on threads of this process, and as one rank of the processes; compares this rank.
void compare_both_ways(const engine::Run& run, uint64_t seed) {
  const auto compiled = std::make_shared<const engine::Compiled>(engine::compile(run));
  const std::shared_ptr<comm::Connection> connection = engine::connection(run);
  const int32_t rank = connection->index();
  runtime::LocalRanks threads(kRanks, kernels::cpu_backend(), engine::rank_options(run));
  engine::Session local(compiled, runtime::Store(threads));
  train_session(local, run, seed);
  runtime::LocalRanks own(std::make_shared<comm::ProcessWorld>(connection), {rank},
                          kernels::cpu_backend(), engine::rank_options(run));
  engine::Session remote(compiled, runtime::Store(own), emulate_something(compiled->program));
  train_session(remote, run, seed);
  EXPECT_EQ(remote.loss(), local.loss());
  const auto& entries = local.store().at(rank).entries();
  ASSERT_EQ(remote.store().at(rank).entries().size(), entries.size());
  for (const auto& [name, entry] : entries) {
    const auto& other = remote.store().at(rank).entries().at(name);
    EXPECT_EQ(std::memcmp(other.data, entry.data, static_cast<size_t>(entry.type.bytes())), 0)
        << name << " on rank " << rank;
  }
  for (const graph::Tensor& tensor : compiled->reference.tensors) {
    if (tensor.kind != graph::TensorKind::param) continue;
    EXPECT_EQ(engine::gather(tensor, compiled->program, remote.store()),
              engine::gather(tensor, compiled->program, local.store()))
        << tensor.name;
  }
}

/// Returns loss and gradients of one step, by name.
std::map<std::string, std::vector<double>> results_of(engine::Session& session,
                                                      const engine::Run& run, uint64_t seed) {
  engine::initialise(session.graph(), session.program(), seed, session.store());
  session.feed(random_batch(session.compiled(), run, 0, seed));
  session.step();
  std::map<std::string, std::vector<double>> results = {{"loss", {session.loss()}}};
  for (const auto& grad : session.graph().grads) {
    const std::string name = graph::names::kGradOf + session.graph().tensor(grad.param).name;
    results[name] = session.collect_as<double>(name);
  }
  return results;
}

/// Compares c10d's collectives with threads, in fp64. Only the order of sums may differ.
void compare_with_c10d(const engine::Run& run, uint64_t seed) {
  const auto compiled =
      std::make_shared<const engine::Compiled>(engine::compile(engine::gradients(run)));
  const std::shared_ptr<comm::Connection> connection = engine::connection(run);
  runtime::LocalRanks threads(kRanks, kernels::cpu_backend(), engine::rank_options(run));
  engine::Session local(compiled, runtime::Store(threads));
  const auto world = std::make_shared<comm::ProcessWorld>(connection, comm::Collectives::c10d);
  const int32_t rank = connection->index();
  runtime::LocalRanks own(world, {rank}, kernels::cpu_backend(), engine::rank_options(run));
  engine::Session remote(compiled, runtime::Store(own));
  const auto want = results_of(local, run, seed);
  const auto got = results_of(remote, run, seed);
  if (run.model.num_experts == 0) {
    // Subtracts the pool of messages, which earlier plans have grown.
    const program::Program& program = compiled->program;
    EXPECT_LE(world->peak_message_bytes(rank) - connection->peak_message_bytes(),
              program::memory_of(program)[program.class_of(rank).value()].messages);
  }
  const auto size = [](const std::vector<double>& values) {
    return distance(values, std::vector<double>(values.size()));
  };
  double largest = 0;
  for (const auto& [name, values] : want) {
    largest = std::max(largest, size(values));
  }
  for (const auto& [name, values] : want) {
    // Where addends cancel, only their rounding error is left.
    EXPECT_LE(distance(got.at(name), values), 1e-10 * std::max(size(values), 1e-4 * largest))
        << name;
  }
}

/// Compares losses, norms, gradients, parameters and states with one rank; every process collects
/// those of all ranks.
void compare_with_one_rank(uint64_t seed, const std::shared_ptr<comm::Connection>& connection) {
  Case c = random_case(seed, kRanks, "f64");
  const Outcome one = train(c, {.on_one_rank = true, .steps = 3});
  c.connection = connection;
  EXPECT_EQ(difference(train(c, {.steps = 3}), one), "");
}

/// Returns a case with buckets in which only some gradients go through a lossy codec.
Case codecs_of_single_gradients() {
  Case c;
  c.name = "codecs of single gradients";
  c.seed = 1;
  c.text =
      "model:\n  config: {model_type: llama, vocab_size: 24, hidden_size: 8, num_hidden_layers: 2, "
      "num_attention_heads: 4, num_key_value_heads: 2, head_dim: 4, intermediate_size: 12, "
      "rms_norm_eps: 1.0e-6, rope_theta: 10000.0, tie_word_embeddings: false, "
      "max_position_embeddings: 64, hidden_act: silu}\n"
      "train: {seq_len: 6, global_batch: 24, warmup_steps: 0, lr: 0.01}\n"
      "plan: {dp: 4, grad_codec_of: ['*mlp* int8', '*.1.*down_proj* none', '*q_proj* identity']}\n";
  return c;
}

/// Runs random plans as one of the processes; every third one uses c10d's collectives.
void run_plans(int plans) {
  std::string seeds;
  uint64_t seed = static_cast<uint64_t>(number_from("HOCKET_SEED", 1));
  for (int tried = 0; tried < plans; ++seed) {
    const bool c10d = tried % 3 == 2;
    const Case c = random_case(seed, kRanks, c10d ? "f64" : "f32");
    const engine::Run run =
        engine::parse_run(c.text, c.name,
                          {"plan.threads_per_rank=1", "plan.ranks=gloo",
                           c10d ? "plan.collectives=c10d" : "plan.collectives=own"});
    if (run.plan.world() != kRanks) continue;
    ++tried;
    seeds += " " + std::to_string(seed);
    SCOPED_TRACE(c.name + (c10d ? ", collectives of c10d" : ""));
    c10d ? compare_with_c10d(run, seed) : compare_both_ways(run, seed);
    compare_with_one_rank(seed, engine::connection(run));
    if (testing::Test::HasFailure()) break;
  }
  const Case coded = codecs_of_single_gradients();
  compare_both_ways(
      engine::parse_run(coded.text, coded.name, {"plan.threads_per_rank=1", "plan.ranks=gloo"}),
      coded.seed);
  engine::disconnect(testing::Test::HasFailure() ? "a plan differs" : "");
  if (std::getenv("RANK")[0] == '0') {
    std::cout << plans << " plans, seeds" << seeds << "\n";
  }
}

std::string free_port() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  EXPECT_EQ(bind(fd, reinterpret_cast<sockaddr*>(&address), length), 0);
  EXPECT_EQ(getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length), 0);
  close(fd);
  return std::to_string(ntohs(address.sin_port));
}

/// This program and this test once more, as rank `rank`.
pid_t start(int rank, const std::string& port) {
  const pid_t pid = fork();
  if (pid != 0) return pid;
  for (const char* name : {"RANK", "LOCAL_RANK"}) {
    setenv(name, std::to_string(rank).c_str(), 1);
  }
  for (const char* name : {"WORLD_SIZE", "LOCAL_WORLD_SIZE"}) {
    setenv(name, std::to_string(kRanks).c_str(), 1);
  }
  setenv("MASTER_ADDR", "127.0.0.1", 1);
  setenv("MASTER_PORT", port.c_str(), 1);
  execl("/proc/self/exe", "hocket_tests", "--gtest_filter=Processes.TrainAsOneRankAndAsThreadsDo",
        "--gtest_brief=1", static_cast<char*>(nullptr));
  _exit(127);
}

TEST(Processes, TrainAsOneRankAndAsThreadsDo) {
  if (std::getenv("RANK"))
    return run_plans(number_from("HOCKET_PLANS", static_cast<int>(fewer(40))));
  char self[PATH_MAX] = {};
  ASSERT_GT(readlink("/proc/self/exe", self, sizeof self - 1), 0);
  if (!file_exists(join_path(parent_path(self), "libhocket_torch.so"))) {
    GTEST_SKIP() << "this build has no libhocket_torch.so (tools/setup.sh --torch)";
  }
  const std::string port = free_port();
  std::vector<pid_t> pids;
  for (int rank = 0; rank < kRanks; ++rank) {
    pids.push_back(start(rank, port));
  }
  for (int rank = 0; rank < kRanks; ++rank) {
    int status = 0;
    ASSERT_EQ(waitpid(pids[static_cast<size_t>(rank)], &status, 0),
              pids[static_cast<size_t>(rank)]);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "rank " << rank;
  }
}

}  // namespace
}  // namespace hocket::test::processes_test
