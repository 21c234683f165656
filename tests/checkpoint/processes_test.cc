// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Checkpoints written by several processes: equal to those of one, for any distribution of
// elements; errors and kills of any process; hosts that share no file system.
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/log.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/join.h"
#include "checkpoint/missing_parts.h"
#include "checkpoint/resolve.h"
#include "comm/run_on_all.h"
#include "tests/checkpoint/checkpoint_util.h"
#include "tests/comm/processes_util.h"
#include "tests/compare_util.h"

namespace hocket::checkpoint {
namespace {

using graph::DType;
using test::ForkedProcesses;
using test::ThreadProcesses;

/// A model with random values, whose elements are held by random ranks in runs.
class RandomModel {
 public:
  RandomModel(int64_t step, int32_t ranks, uint64_t seed) : config_(small_config("qwen3_moe")) {
    params_ = random_params(config_, DType::f32, static_cast<uint64_t>(step), storage_);
    optimizer_ = random_params(config_, DType::f32, static_cast<uint64_t>(step) + 9, storage_);
    for (NamedTensor& tensor : optimizer_) {
      tensor.name = "exp_avg." + tensor.name;
    }
    step_ = step;
    Rng rng(seed);
    for (const std::vector<NamedTensor>* list : {&params_, &optimizer_}) {
      for (const NamedTensor& tensor : *list) {
        divide(tensor, ranks, rng);
      }
    }
  }
  RandomModel(const RandomModel&) = delete;

  /// Returns the content for a process with these ranks.
  CheckpointContent content(const std::vector<int32_t>& ranks) const {
    CheckpointContent c;
    c.config = &config_;
    c.state.step = step_;
    c.state.config = "{}";
    c.files["tokenizer.json"] = "{}";
    for (const auto& [from, to] :
         {std::pair(&params_, &c.params), std::pair(&optimizer_, &c.optimizer)}) {
      for (const NamedTensor& tensor : *from) {
        to->push_back({tensor.name, tensor.type, [this, ranks, &tensor] {
                         std::vector<Share> mine;
                         for (const Share& share : shares_.at(tensor.name)) {
                           if (std::find(ranks.begin(), ranks.end(), share.rank) != ranks.end()) {
                             mine.push_back(share);
                           }
                         }
                         return mine;
                       }});
      }
    }
    return c;
  }
  const std::vector<NamedTensor>& params() const { return params_; }
  const std::vector<NamedTensor>& optimizer() const { return optimizer_; }
  const std::vector<Share>& shares(const std::string& name) const { return shares_.at(name); }

 private:
  void divide(const NamedTensor& tensor, int32_t ranks, Rng& rng) {
    std::vector<Share>& list = shares_[tensor.name];
    const int64_t count = tensor.type.numel();
    // Some tensors are split into columns, others into runs of any length.
    const int64_t step = rng.below(2) ? 1 + rng.between(0, 4) : 0;
    int32_t rank = 0;
    for (int64_t first = 0; first < count;) {
      const int64_t length =
          std::min(count - first, step > 0 ? step : 1 + rng.between(0, count / 3));
      rank = step > 0 ? (rank + 1) % ranks
                      : static_cast<int32_t>(rng.below(static_cast<uint64_t>(ranks)));
      list.push_back({rank, first, length, static_cast<const float*>(tensor.data) + first});
      first += length;
    }
  }

  models::ModelConfig config_;
  std::vector<std::vector<char>> storage_;
  std::vector<NamedTensor> params_, optimizer_;
  std::map<std::string, std::vector<Share>> shares_;
  int64_t step_ = 0;
};

/// Process p has the ranks 2p and 2p + 1.
std::vector<int32_t> ranks_of(const comm::Processes& process) {
  return {2 * process.index(), 2 * process.index() + 1};
}

/// Saves with one process per folder, each with two ranks; returns the errors they threw.
std::vector<std::string> save(ThreadProcesses& all, const std::vector<std::string>& folders,
                              const RandomModel& model) {
  return all.run([&](comm::Processes& process) {
    const RunFolder run(folders[static_cast<size_t>(process.index())], process, ranks_of(process));
    save_checkpoint(run, model.content(ranks_of(process)));
  });
}

std::vector<std::string> same(const std::string& folder, size_t count) {
  return std::vector<std::string>(count, folder);
}

void expect_whole(const std::string& folder, const RandomModel& model) {
  const Checkpoint back(folder);
  for (const NamedTensor& tensor : model.params()) {
    std::vector<char> bytes(static_cast<size_t>(tensor.type.bytes()));
    back.load_range(tensor.name, 0, tensor.type.numel(), DType::f32, bytes.data());
    EXPECT_EQ(0, std::memcmp(bytes.data(), tensor.data, bytes.size())) << tensor.name;
  }
  for (const NamedTensor& tensor : model.optimizer()) {
    std::vector<char> bytes(static_cast<size_t>(tensor.type.bytes()));
    back.load_optimizer_range(tensor.name, tensor.type, 0, tensor.type.numel(), bytes.data());
    EXPECT_EQ(0, std::memcmp(bytes.data(), tensor.data, bytes.size())) << tensor.name;
  }
}

void expect_nothing_left(const std::string& run) {
  for (const std::string& name : list_dir(run)) {
    EXPECT_TRUE(name.starts_with("step-") && name.find("tmp") == name.npos) << name;
  }
}

TEST(Processes, WriteTheSameFilesAsOneProcess) {
  for (int32_t count = 1; count <= 4; ++count) {
    const TempFolder many, one;
    const RandomModel model(7, 2 * count, static_cast<uint64_t>(count));
    ThreadProcesses all(count);
    EXPECT_EQ(save(all, same(many.path(), static_cast<size_t>(count)), model),
              std::vector<std::string>(static_cast<size_t>(count)));
    std::vector<int32_t> ranks;
    for (int32_t rank = 0; rank < 2 * count; ++rank) {
      ranks.push_back(rank);
    }
    save_checkpoint(one.path(), model.content(ranks));
    const std::string folder = many / "step-000007", alone = one / "step-000007";
    EXPECT_EQ(list_dir(folder), list_dir(alone));
    for (const std::string& name : list_dir(folder)) {
      if (name == "run.json") continue;
      EXPECT_EQ(read_file(folder + "/" + name), read_file(alone + "/" + name)) << name;
    }
    expect_whole(folder, model);
    expect_nothing_left(many.path());
    const RunRecord record = read_record(folder + "/run.json");
    for (const char* name : {kModelFile, kOptimizerFile}) {
      std::vector<int32_t> written;
      for (const Part& part : record.files.at(name).parts) {
        written.push_back(part.rank);
      }
      std::sort(written.begin(), written.end());
      written.erase(std::unique(written.begin(), written.end()), written.end());
      EXPECT_EQ(written, ranks) << name;
    }
  }
}

// A changed part is found by whichever process compares it, and all processes fall back alike.
TEST(Processes, DivideTheVerification) {
  const TempFolder run;
  ThreadProcesses all(3);
  const RandomModel older(1, 6, 1), newest(2, 6, 2);
  save(all, same(run.path(), 3), older);
  save(all, same(run.path(), 3), newest);
  set_log_sink([](LogLevel, const std::string&) {});
  Rng rng(4);
  for (const std::string& name : list_dir(run / "step-000002")) {
    const std::string path = run / "step-000002/" + name, good = read_file(path);
    for (int i = 0; i < 8; ++i) {
      std::string bad = good;
      const size_t at = rng.below(bad.size());
      if (name == "run.json" && std::strchr(" \n", bad[at]) != nullptr) continue;
      bad[at] = static_cast<char>(bad[at] ^ 1);
      write_file_atomic(path, bad);
      all.expect_run([&](comm::Processes& process) {
        EXPECT_EQ(latest_checkpoint(run.path(), Verify::all, process), run / "step-000001")
            << name << " byte " << at;
      });
    }
    write_file_atomic(path, good);
  }
  all.expect_run([&](comm::Processes& process) {
    EXPECT_EQ(latest_checkpoint(run.path(), Verify::all, process), run / "step-000002");
    EXPECT_EQ(resolve_model(run.path(), Need::intact, process).folder, run / "step-000002");
  });
  set_log_sink(nullptr);
}

// A write, sync, open or rename of any process fails: all throw the same error, and the older
// checkpoint stays the newest.
TEST(Processes, AFaultOfOneIsTheErrorOfAll) {
  using Op = FileFaults::Op;
  for (const bool shared : {true, false}) {
    const TempFolder top;
    std::vector<std::string> folders = same(top / "run", 2);
    if (!shared) {
      folders = {top / "a", top / "b"};
    }
    ThreadProcesses all(2);
    const RandomModel old(1, 4, 1), next(2, 4, 2);
    save(all, folders, old);
    int faults = 0;
    for (const Op op : {Op::open, Op::write, Op::sync, Op::rename}) {
      // With thousands of writes, the steps between faults grow.
      for (int nth = 1;; nth += 1 + nth / 6) {
        std::vector<std::string> thrown;
        {
          const FileFaults fault(op, nth, ENOSPC);
          thrown = save(all, folders, next);
        }
        EXPECT_EQ(thrown[0], thrown[1]);
        if (thrown[0].empty()) break;
        ++faults;
        EXPECT_NE(thrown[0].find("] rank "), std::string::npos) << thrown[0];
        EXPECT_NE(thrown[0].find("No space left"), std::string::npos) << thrown[0];
        all.expect_run([&](comm::Processes& process) {
          const std::string& folder = folders[static_cast<size_t>(process.index())];
          const auto latest = latest_checkpoint(folder, Verify::all, process);
          ASSERT_TRUE(latest.has_value());
          // A folder is complete if its sync failed after the rename.
          if (!shared || op != Op::sync) {
            EXPECT_EQ(file_name(*latest), "step-000001") << thrown[0];
          }
          for (const std::string& name : list_dir(folder)) {
            EXPECT_TRUE(name.starts_with("step-") && name.find("tmp") == name.npos) << name;
          }
        });
      }
      for (const std::string& folder : folders) {
        remove_tree(folder + "/step-000002");
      }
    }
    EXPECT_GT(faults, 30);
    EXPECT_EQ(save(all, folders, next), std::vector<std::string>(2));
  }
}

// One of three processes is killed at a random instant: the others end with an error, and a folder
// with its final name is complete.
TEST(Processes, AKillOfOneLeavesOnlyCompleteCheckpoints) {
  const TempFolder run;
  const RandomModel old(1, 6, 1), next(2, 6, 2);
  std::vector<int32_t> ranks = {0, 1, 2, 3, 4, 5};
  save_checkpoint(run.path(), old.content(ranks));
  Rng rng(12);
  for (int i = 0; i < 20; ++i) {
    ForkedProcesses all(3, [&](comm::Processes& process) {
      for (;;) {
        const RunFolder folder(run.path(), process, ranks_of(process));
        save_checkpoint(folder, next.content(ranks_of(process)));
      }
    });
    const auto victim = static_cast<int32_t>(rng.below(3));
    ::usleep(static_cast<useconds_t>(rng.below(40'000)));
    all.kill(victim);
    for (int32_t process = 0; process < 3; ++process) {
      EXPECT_EQ(all.wait(process, std::chrono::seconds(20)), process == victim ? -1 : 3);
    }
    const auto latest = latest_checkpoint(run.path(), Verify::all);
    ASSERT_TRUE(latest.has_value());
    expect_whole(*latest, file_name(*latest) == "step-000002" ? next : old);
  }
  clean_checkpoints(run.path());
  for (const std::string& name : list_dir(run.path())) {
    EXPECT_TRUE(name.starts_with("step-") && name.find("tmp") == name.npos) << name;
  }
}

/// Three processes on two hosts: the first two see one folder.
class Hosts : public testing::Test {
 protected:
  Hosts() : folders_{top_ / "a", top_ / "a", top_ / "b"} {
    set_log_sink([this](LogLevel, const std::string& line) {
      const std::lock_guard lock(mutex_);
      log_ += line + "\n";
    });
    for (const RandomModel* model : {&older_, &newest_}) {
      EXPECT_EQ(save(all_, folders_, *model), std::vector<std::string>(3));
    }
  }
  ~Hosts() override { set_log_sink(nullptr); }

  /// Returns the name of the checkpoint that all resume from.
  std::string latest() {
    std::vector<std::string> names(3);
    all_.expect_run([&](comm::Processes& process) {
      const auto at = static_cast<size_t>(process.index());
      names[at] = file_name(latest_checkpoint(folders_[at], Verify::all, process).value_or(""));
    });
    EXPECT_EQ(names[1], names[0]);
    EXPECT_EQ(names[2], names[0]);
    return names[0];
  }

  const TempFolder top_;
  const std::vector<std::string> folders_;
  const RandomModel older_{1, 6, 1}, newest_{2, 6, 2};
  ThreadProcesses all_{3};
  std::mutex mutex_;
  std::string log_;
};

TEST_F(Hosts, EachKeepsItsPart) {
  EXPECT_EQ(latest(), "step-000002");
  const std::string a = top_ / "a/step-000002", b = top_ / "b/step-000002";
  EXPECT_EQ(list_dir(a), list_dir(b));
  EXPECT_EQ(read_file(a + "/run.json"), read_file(b + "/run.json"));
  for (const std::string& folder : {a, b}) {
    const Checkpoint from(folder);
    EXPECT_TRUE(from.is_partial());
    EXPECT_EQ(from.host(), folder == a ? 0 : 1);
    EXPECT_EQ(from.record().hosts[0].ranks, (std::vector<int32_t>{0, 1, 2, 3}));
    EXPECT_EQ(from.record().hosts[1].ranks, (std::vector<int32_t>{4, 5}));
    // Data of this host's ranks is present; everything else is reported to be elsewhere.
    for (const NamedTensor& tensor : newest_.params()) {
      for (const Share& share : newest_.shares(tensor.name)) {
        MissingParts missing(from);
        missing.need_param(tensor.name, share.first, share.count);
        const bool here = (share.rank < 4) == (folder == a);
        EXPECT_EQ(missing.text().empty(), here) << tensor.name << missing.text();
        if (!here) {
          const std::string writer = fmt::format("rank {} on host", share.rank);
          EXPECT_NE(missing.text().find(writer), std::string::npos) << missing.text();
          continue;
        }
        std::vector<float> back(static_cast<size_t>(share.count));
        from.load_range(tensor.name, share.first, share.count, DType::f32, back.data());
        EXPECT_EQ(std::memcmp(back.data(), share.data, back.size() * sizeof(float)), 0);
      }
    }
    const NamedTensor& state = newest_.optimizer()[2];
    MissingParts missing(from);
    missing.need_optimizer(state.name, state.type, 0, state.type.numel());
    EXPECT_NE(missing.text().find(state.name), std::string::npos) << missing.text();
    EXPECT_NE(
        missing.text().find(fmt::format("this folder has the part of host {} of 2", from.host())),
        std::string::npos)
        << missing.text();
    // The text names three tensors and counts the others.
    MissingParts all(from);
    int64_t lacking = 0;
    for (const NamedTensor& tensor : newest_.params()) {
      MissingParts one(from);
      one.need_param(tensor.name, 0, tensor.type.numel());
      all.need_param(tensor.name, 0, tensor.type.numel());
      lacking += one.text().empty() ? 0 : 1;
    }
    const std::string list = all.text();
    EXPECT_EQ(std::ranges::count(list, ';'), lacking > 3 ? 5 : lacking + 1) << list;
    EXPECT_EQ(list.find(fmt::format("; and {} more tensors;", lacking - 3)) != std::string::npos,
              lacking > 3)
        << list;
    // No reader accepts it as a model.
    EXPECT_FALSE(file_exists(folder + "/model.safetensors"));
    EXPECT_NE(error_of([&] { resolve_model(folder, Need::intact); }).find("of one host"),
              std::string::npos);
  }
}

TEST_F(Hosts, PartsOfAllAreJoinedToAWholeCheckpoint) {
  const std::string a = top_ / "a/step-000002", b = top_ / "b/step-000002";
  const std::string whole = top_ / "whole/step-000002";
  const Joined joined = join_checkpoint({b, a}, whole);
  EXPECT_EQ(joined.step, 2);
  EXPECT_EQ(joined.hosts, 2);
  EXPECT_EQ(joined.given_hosts, (std::vector<int32_t>{0, 1}));
  expect_whole(whole, newest_);
  EXPECT_FALSE(Checkpoint(whole).is_partial());
  // Identical to the byte to a save on one file system, except for the writers.
  save(all_, same(top_ / "one", 3), newest_);
  EXPECT_EQ(list_dir(top_ / "whole"), (std::vector<std::string>{"step-000002"}));
  EXPECT_EQ(list_dir(whole), list_dir(top_ / "one/step-000002"));
  int64_t bytes = 0;
  for (const std::string& name : list_dir(whole)) {
    if (name == "run.json") continue;
    const std::string got = read_file(whole + "/" + name);
    EXPECT_EQ(got, read_file(top_ / "one/step-000002/" + name)) << name;
    bytes += name.ends_with(".safetensors") ? static_cast<int64_t>(got.size()) : 0;
  }
  EXPECT_EQ(joined.bytes, bytes);
}

/// Data that every host has is copied from one; a host with no data of its own may be absent.
TEST_F(Hosts, AreJoinedWithoutRedundantHosts) {
  all_.expect_run([&](comm::Processes& process) {
    const RunFolder run(folders_[static_cast<size_t>(process.index())], process, ranks_of(process));
    CheckpointContent content = newest_.content({0, 1, 2, 3, 4, 5});
    content.state.step = 3;
    if (process.index() == 1) {
      content = newest_.content({});
      content.state.step = 3;
    }
    save_checkpoint(run, content);
  });
  const std::string whole = top_ / "whole";
  EXPECT_EQ(join_checkpoint({top_ / "b/step-000003"}, whole).given_hosts,
            (std::vector<int32_t>{1}));
  EXPECT_EQ(
      join_checkpoint({top_ / "a/step-000003", top_ / "b/step-000003"}, top_ / "both").given_hosts,
      (std::vector<int32_t>{0, 1}));
  EXPECT_EQ(read_file(whole + "/model.safetensors"), read_file(top_ / "both/model.safetensors"));
}

TEST_F(Hosts, AreJoinedWholeOrNotAtAll) {
  const std::string a = top_ / "a/step-000002", b = top_ / "b/step-000002", out = top_ / "out";
  const auto refused = [&](const std::vector<std::string>& folders, const std::string& to,
                           const std::string& why) {
    const std::string text = error_of([&] { join_checkpoint(folders, to); });
    EXPECT_NE(text.find(why), text.npos) << text;
    EXPECT_TRUE(to == a || !file_exists(to));
  };
  refused({a}, out, "on host 1 of 2 (");
  refused({b}, out, "on host 0 of 2 (");
  refused({a, a}, out, "is the folder of host 0 of 2");
  refused({a, top_ / "b/step-000001"}, out, "is of step 1; " + a + " is of step 2");
  refused({a, b}, a, "exists already");
  refused({a, b}, top_ / "step-000004", "is named after step 4; the parts are of step 2");
  refused({top_ / "none"}, out, "not an intact checkpoint: no run.json");
  // The same step, saved once more by other ranks.
  save(all_, {top_ / "c", top_ / "c", top_ / "d"}, RandomModel(2, 6, 3));
  refused({a, top_ / "d/step-000002"}, out, "is part of another save of step 2");
  // A complete checkpoint has no parts to join.
  save(all_, same(top_ / "one", 3), newest_);
  refused({top_ / "one/step-000002"}, out, "there is nothing to join");
  const std::string path = b + "/model.part.safetensors", good = read_file(path);
  std::string bad = good;
  const Part& part = [&] {
    const RunRecord record = read_record(b + "/run.json");
    for (const Part& one : record.files.at("model.part.safetensors").parts) {
      if (one.host == 1) return one;
    }
    return Part();
  }();
  bad[static_cast<size_t>(part.ranges.back().begin)] ^= 1;
  write_file_atomic(path, bad);
  refused({a, b}, out, "in a part written by rank");
  write_file_atomic(path, good);
  int faults = 0;
  for (const auto op : {FileFaults::Op::open, FileFaults::Op::write, FileFaults::Op::rename}) {
    for (int nth = 1;; nth += 1 + nth / 3) {
      try {
        const FileFaults fault(op, nth, ENOSPC);
        join_checkpoint({a, b}, out);
      } catch (const Error&) {
        ++faults;
        EXPECT_FALSE(file_exists(out));
        continue;
      }
      expect_whole(out, newest_);
      remove_tree(out);
      break;
    }
  }
  EXPECT_GT(faults, 10);
  // The folders of the hosts are unchanged, and the failed join left nothing.
  EXPECT_EQ(latest(), "step-000002");
  for (const std::string& name : list_dir(top_.path())) {
    EXPECT_EQ(name.find("tmp"), name.npos) << name;
  }
}

TEST_F(Hosts, ACheckpointCountsOnlyIfAllHostsHaveIt) {
  const std::string b = top_ / "b/step-000002", aside = top_ / "aside";
  rename_durable(b, aside);
  EXPECT_EQ(latest(), "step-000001");
  const std::string absent = "(rank 2: is missing on host " + host_name() + ")";
  EXPECT_NE(log_.find("step-000002 " + absent), std::string::npos) << log_;
  rename_durable(aside, b);
  EXPECT_EQ(latest(), "step-000002");
  // The marker, the part, and the record each identify this checkpoint and host.
  for (const char* name : {"host.json", "run.json", "model.part.safetensors", "tokenizer.json"}) {
    const std::string path = b + "/" + name, good = read_file(path);
    remove_file(path);
    EXPECT_EQ(latest(), "step-000001") << name;
    write_file_atomic(path, read_file(top_ / "a/step-000001/" + std::string(name)));
    if (std::strcmp(name, "tokenizer.json") != 0) {
      EXPECT_EQ(latest(), "step-000001") << name;
    }
    write_file_atomic(path, good);
  }
  const std::string marker = read_file(b + "/host.json");
  write_file_atomic(b + "/host.json", read_file(top_ / "a/step-000002/host.json"));
  EXPECT_EQ(latest(), "step-000001");  // the parts of host 0 are not here
  write_file_atomic(b + "/host.json", marker);
  EXPECT_EQ(latest(), "step-000002");
  remove_tree(top_ / "b");
  const std::vector<std::string> thrown = all_.run([&](comm::Processes& process) {
    latest_checkpoint(folders_[static_cast<size_t>(process.index())], Verify::all, process);
  });
  for (const std::string& text : thrown) {
    const std::string both = "step-000002 " + absent + ", step-000001 " + absent;
    EXPECT_NE(text.find("no intact checkpoint: " + both), std::string::npos) << text;
  }
}

TEST_F(Hosts, CleanAndPruneOnlyTheirOwnFolders) {
  for (const char* host : {"a", "b"}) {
    make_dirs(top_ / host + "/step-000009.hocket-tmp-1999999999");
  }
  all_.expect_run([&](comm::Processes& process) {
    const RunFolder run(folders_[static_cast<size_t>(process.index())], process, ranks_of(process));
    clean_checkpoints(run);
    prune_checkpoints(run, 2, 1);
  });
  for (const char* host : {"a", "b"}) {
    EXPECT_EQ(list_dir(top_ / host), (std::vector<std::string>{"step-000002"}));
  }
}

TEST_F(Hosts, OtherFilesOnAnotherHostAreAnError) {
  const std::vector<std::string> thrown = all_.run([&](comm::Processes& process) {
    const RunFolder run(folders_[static_cast<size_t>(process.index())], process, ranks_of(process));
    CheckpointContent content = newest_.content(ranks_of(process));
    content.state.step = 3;
    content.files["tokenizer.json"] = process.index() == 2 ? "{\"other\": 1}" : "{}";
    save_checkpoint(run, content);
  });
  for (const std::string& text : thrown) {
    EXPECT_NE(text.find("'tokenizer.json' on one host differs"), std::string::npos) << text;
  }
  EXPECT_EQ(latest(), "step-000002");
}

constexpr int64_t kColumns = 64;

/// Returns the peak resident bytes of this process since the last call with `true`.
int64_t peak_resident(bool reset) {
  if (reset) {
    std::ofstream("/proc/self/clear_refs") << "5";
  }
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  }
  return -1;
}

// Saves and verifies a model of 97 MiB, held in columns by the ranks of one process, with a few MiB
// of memory.
TEST(Memory, SavingNeedsNoCopyOfTheModel) {
  if (test::has_address_sanitizer()) {
    GTEST_SKIP() << "the address sanitizer keeps freed memory resident";
  }
  nlohmann::json json = nlohmann::json::parse(small_config("llama").json);
  json.update({{"hidden_size", 1024}, {"intermediate_size", 8192}, {"num_hidden_layers", 1}});
  const models::ModelConfig config = models::parse_config(json.dump(), "test");
  // All tensors share one block of memory for their values.
  std::vector<float> block(1024 * 8192, 0.5F);
  CheckpointContent c;
  c.config = &config;
  c.state.step = 1;
  c.state.config = "{}";
  int64_t bytes = 0;
  for (const models::ParamWeights& param : models::weight_map(config)) {
    const graph::TensorType type{DType::f32, param.dims};
    bytes += type.bytes();
    c.params.push_back({param.param, type, [&block, type] {
                          std::vector<Share> shares;
                          const int64_t count = type.numel();
                          for (int64_t first = 0; first < count; first += kColumns) {
                            shares.push_back({static_cast<int32_t>(first / kColumns % 4), first,
                                              std::min(kColumns, count - first), block.data()});
                          }
                          return shares;
                        }});
  }
  EXPECT_GT(bytes, int64_t{96} << 20);
  const TempFolder run;
  const int64_t before = peak_resident(true);
  const std::string folder = save_checkpoint(run.path(), c);
  const Checkpoint back(folder);
  const int64_t after = peak_resident(false);
  // The allocator keeps some of what was freed: 17 MiB were seen. A copy is 97 MiB.
  EXPECT_LT(after - before, int64_t{24} << 20) << "of " << bytes;
  EXPECT_LT(file_size(folder + "/run.json"), 200'000);
}

}  // namespace
}  // namespace hocket::checkpoint
