// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Interface to c10d. Its collectives on one rank, with Gloo groups and, where there is a GPU, NCCL
// groups: every element type, sums and maxima, empty exchanges. Also a libhocket_torch.so of
// another build, which is refused before any of its functions is called, because its objects would
// be misinterpreted.
#include "comm/c10d.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <string>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/process.h"
#include "comm/connection.h"

namespace hocket::comm {
namespace {

using std::chrono::milliseconds;

constexpr milliseconds kPatience{60'000};

bool has_library() {
  char self[PATH_MAX] = {};
  const ssize_t length = readlink("/proc/self/exe", self, sizeof self - 1);
  return length > 0 && file_exists(join_path(parent_path(self), "libhocket_torch.so"));
}

/// Opens the transport of a run with one process, on a port of its own.
std::unique_ptr<Transport> alone_with(GroupBackend groups) {
  LaunchInfo info;
  info.address = "127.0.0.1";
  info.port = 20000 + getpid() % 10000 + (groups == GroupBackend::nccl ? 10000 : 0);
  info.launcher = "test";
  return open_c10d(info, kPatience, groups);
}

template <class T>
Scratch scratch_of(const std::vector<T>& values) {
  const auto memory = std::make_shared<Message>(static_cast<int64_t>(values.size() * sizeof(T)));
  if (!values.empty()) {
    std::memcpy(memory->data.get(), values.data(), values.size() * sizeof(T));
  }
  return {memory, memory->data.get(), memory->bytes};
}

template <class T>
std::vector<T> values_of(const Scratch& scratch) {
  std::vector<T> values(static_cast<size_t>(scratch.bytes) / sizeof(T));
  if (!values.empty()) {
    std::memcpy(values.data(), scratch.data, values.size() * sizeof(T));
  }
  return values;
}

void expect_ends(const std::unique_ptr<Request>& collective) {
  const WaitResult received = collective->wait(kPatience);
  EXPECT_EQ(received.end, WaitResult::End::completed) << received.text;
}

/// Expects that every collective of one member keeps its data.
template <class T>
void expect_kept(CollectiveGroup& group, ReduceType type) {
  std::vector<T> values(1000);
  std::iota(values.begin(), values.end(), T{3});
  const std::vector<T> zeros(values.size());
  for (const bool max : {false, true}) {
    const Scratch sum = scratch_of(values);
    expect_ends(group.all_reduce(sum, type, max));
    EXPECT_EQ(values_of<T>(sum), values);
    const Scratch blocks = scratch_of(values), block = scratch_of(zeros);
    expect_ends(group.reduce_scatter(blocks, block, type, max));
    EXPECT_EQ(values_of<T>(block), values);
  }
  const Scratch all = scratch_of(zeros);
  expect_ends(group.all_gather(scratch_of(values), all));
  EXPECT_EQ(values_of<T>(all), values);
  for (const size_t count : {values.size(), size_t{0}}) {
    const std::vector<T> some(values.begin(), values.begin() + static_cast<int64_t>(count));
    const std::vector<int64_t> bytes = {static_cast<int64_t>(count * sizeof(T))};
    const Scratch out = scratch_of(std::vector<T>(count));
    expect_ends(group.all_to_all(scratch_of(some), bytes, out, bytes));
    EXPECT_EQ(values_of<T>(out), some);
  }
}

void expect_collectives(GroupBackend groups) {
  const std::unique_ptr<Transport> transport = alone_with(groups);
  const std::vector<int32_t> members = {0};
  const std::unique_ptr<CollectiveGroup> group = transport->group(members);
  expect_kept<float>(*group, ReduceType::f32);
  expect_kept<double>(*group, ReduceType::f64);
  expect_kept<uint16_t>(*group, ReduceType::bf16);
  expect_kept<uint16_t>(*group, ReduceType::f16);
  expect_kept<int32_t>(*group, ReduceType::i32);
  expect_kept<int64_t>(*group, ReduceType::i64);
}

TEST(C10d, GlooCollectivesWorkWithOneRank) {
  if (!has_library()) {
    GTEST_SKIP() << "this build has no libhocket_torch.so (tools/setup.sh --torch)";
  }
  expect_collectives(GroupBackend::gloo);
  Connection connection(alone_with(GroupBackend::gloo), kPatience);
  connection.check_collectives();
  connection.leave();
}

TEST(C10d, NcclCollectivesWorkWithOneRank) {
  unsetenv("CUDA_VISIBLE_DEVICES");  // other tests hide the GPUs
  if (gpus().count == 0) {
    EXPECT_NE(gpus().why_none, "");
    GTEST_SKIP() << gpus().why_none;
  }
  expect_collectives(GroupBackend::nccl);
  Connection connection(alone_with(GroupBackend::nccl), kPatience);
  connection.check_collectives();
  connection.leave();
}

TEST(C10d, WithoutGpusThereIsNoNccl) {
  if (!has_library()) {
    GTEST_SKIP() << "this build has no libhocket_torch.so (tools/setup.sh --torch)";
  }
  if (gpus().count > 0) {
    GTEST_SKIP() << "there are GPUs";
  }
  EXPECT_ANY_THROW(alone_with(GroupBackend::nccl));
}

TEST(C10d, ErrorsHaveNoBacktrace) {
  EXPECT_EQ(without_backtrace(
                "timed out.\nException raised from f at Store.cpp:1 (most recent call first):\n"
                "frame #0: c10::Error\n"),
            "timed out.");
  EXPECT_EQ(without_backtrace("closed"), "closed");
}

/// The error names the missing ranks and the reason in one line, without c10d's stack trace.
TEST(C10d, AFailedConnectIsReportedInOneLine) {
  if (!has_library()) {
    GTEST_SKIP() << "this build has no libhocket_torch.so (tools/setup.sh --torch)";
  }
  LaunchInfo info;
  info.size = 2;
  info.rank = 1;
  info.address = "127.0.0.1";
  info.port = 1;  // no listener
  try {
    open_c10d(info, std::chrono::seconds(1));
    FAIL() << "met somebody";
  } catch (const Error& error) {
    const std::string said = error.what();
    EXPECT_EQ(said.rfind("[comm] rank 1 could not connect to the others at 127.0.0.1:1: ", 0), 0)
        << said;
    EXPECT_EQ(said.find('\n'), std::string::npos) << said;
  }
}

/// Builds a library from this C text, loads it, and returns the error.
std::string said_of(const std::string& text, const std::string& library) {
  run_command("cc -x c -shared -fPIC -o '" + library + "' -", text, "cc");
  ::setenv("HOCKET_TORCH_LIBRARY", library.c_str(), 1);
  std::string said;
  try {
    LaunchInfo info;
    info.size = 2;
    info.address = "localhost";
    open_c10d(info, std::chrono::seconds(1));
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    said = error.what();
  }
  ::unsetenv("HOCKET_TORCH_LIBRARY");
  return said;
}

TEST(C10d, ALibraryOfAnotherBuildIsRefused) {
  if (std::system("cc --version > /dev/null 2>&1") != 0) {
    GTEST_SKIP() << "no C compiler";
  }
  const std::string opens = "void* hocket_open_c10d(void) { __builtin_trap(); }\n";
  const std::string older = ::testing::TempDir() + "older.so";
  const std::string said = said_of(opens, older);
  EXPECT_NE(said.find(older + " is from another build"), said.npos) << said;
  EXPECT_NE(said.find("is none; expected "), said.npos) << said;
  EXPECT_NE(said.find("make build"), said.npos) << said;
  const std::string other =
      said_of(opens + "const char* hocket_transport(void) { return \"0123\"; }\n",
              ::testing::TempDir() + "other.so");
  EXPECT_NE(other.find("is 0123; expected "), other.npos) << other;
  // A file that is no library at all.
  const std::string file = ::testing::TempDir() + "text.so";
  write_file_atomic(file, "text");
  ::setenv("HOCKET_TORCH_LIBRARY", file.c_str(), 1);
  EXPECT_THROW(open_c10d(LaunchInfo(), std::chrono::seconds(1)), Error);
  ::unsetenv("HOCKET_TORCH_LIBRARY");
}

}  // namespace
}  // namespace hocket::comm
