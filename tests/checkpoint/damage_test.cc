// SPDX-License-Identifier: Apache-2.0
// Checkpoints that were changed after the save: every byte, file and name. Damaged ones are
// refused, and an older one is used instead.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/hash.h"
#include "base/log.h"
#include "base/rng.h"
#include "checkpoint/checkpoint.h"
#include "checkpoint/resolve.h"
#include "tests/checkpoint/checkpoint_util.h"
#include "tests/log_util.h"

namespace hocket::checkpoint {
namespace {

using graph::DType;
using nlohmann::json;

/// Run with two checkpoints of one small model, with files of equal lengths.
class Damage : public testing::Test {
 protected:
  Damage() {
    older_ = save(1);
    newest_ = save(2);
  }

  std::string save(int64_t step) {
    const models::ModelConfig config = small_config("llama");
    std::vector<std::vector<char>> storage;
    CheckpointContent c;
    c.config = &config;
    c.params = shared(random_params(config, DType::f32, static_cast<uint64_t>(step), storage));
    std::vector<std::vector<char>> moments;
    std::vector<NamedTensor> optimizer =
        random_params(config, DType::f32, static_cast<uint64_t>(step) + 9, moments);
    for (NamedTensor& t : optimizer) {
      t.name = "exp_avg." + t.name;
    }
    c.optimizer = shared(optimizer);
    c.state.step = step;
    c.state.config = "{}";
    c.state.data = R"({"time_s":1.5})";
    c.state.losses = {{step, 0.25 * static_cast<double>(step)}};
    c.files["tokenizer.json"] = "{}";
    return save_checkpoint(run_.path(), c);
  }

  /// Expects that the newest checkpoint is refused by name, and that the older one is used with a
  /// warning.
  void expect_fall_back(const std::string& why) {
    const std::string refusal = error_of([&] { const Checkpoint c(newest_); });
    EXPECT_NE(refusal.find(why), std::string::npos) << refusal;
    log_.clear();
    EXPECT_EQ(latest_checkpoint(run_.path(), Verify::all), older_);
    EXPECT_NE(log_.text().find("step-000002 ("), std::string::npos) << log_.text();
    EXPECT_NE(log_.text().find("using step-000001, which is intact"), std::string::npos)
        << log_.text();
  }

  /// Rewrites the newest checkpoint in the format without checksums.
  void make_old_format() {
    json object = json::parse(read_file(newest_ + "/run.json"));
    object["hocket_checkpoint"] = 1;
    object.erase("xxh3");
    for (auto& [name, file] : object["files"].items()) {
      file = json(file["bytes"]);
    }
    write_file_atomic(newest_ + "/run.json", object.dump(1));
  }

  const TempFolder run_;
  std::string older_, newest_;
  test::LogLines log_;
};

TEST_F(Damage, EveryFlippedByteIsNoticed) {
  EXPECT_EQ(latest_checkpoint(run_.path(), Verify::all), newest_);
  EXPECT_EQ(log_.text(), "");
  Rng rng(3);
  for (const std::string& name : list_dir(newest_)) {
    const std::string path = newest_ + "/" + name, good = read_file(path);
    std::vector<size_t> places = {0, good.size() / 2, good.size() - 1};
    for (int i = 0; i < 5; ++i) {
      places.push_back(rng.below(good.size()));
    }
    for (const size_t at : places) {
      SCOPED_TRACE(name + " byte " + std::to_string(at));
      // White space of run.json is not significant.
      if (name == "run.json" && std::strchr(" \n", good[at]) != nullptr) continue;
      std::string bad = good;
      bad[at] = static_cast<char>(bad[at] ^ 1);
      write_file_atomic(path, bad);
      expect_fall_back(name);
      // A caller that needs only the weights does not read the optimizer's tensors.
      if (name != "optimizer.safetensors") {
        EXPECT_EQ(latest_checkpoint(run_.path(), Verify::weights), older_);
      } else if (at == good.size() - 1) {
        EXPECT_EQ(latest_checkpoint(run_.path(), Verify::weights), newest_);
      }
    }
    write_file_atomic(path, good);
  }
  EXPECT_EQ(latest_checkpoint(run_.path(), Verify::all), newest_);
}

TEST_F(Damage, EveryOtherLengthIsNoticed) {
  for (const std::string& name : list_dir(newest_)) {
    const std::string path = newest_ + "/" + name, good = read_file(path);
    for (const std::string& bad :
         {good + "\n", good + good, good.substr(0, good.size() - 1), std::string()}) {
      // A trailing newline of run.json is not significant.
      if (name == "run.json" && (bad == good + "\n" || bad + "\n" == good)) continue;
      write_file_atomic(path, bad);
      expect_fall_back(name);
      EXPECT_EQ(latest_checkpoint(run_.path(), Verify::lengths), older_) << name;
    }
    remove_file(path);
    expect_fall_back(name);
    write_file_atomic(path, good);
  }
}

TEST_F(Damage, FilesOfAnotherStepAreNoticed) {
  for (const std::string& name : list_dir(newest_)) {
    const std::string mine = read_file(newest_ + "/" + name),
                      other = read_file(older_ + "/" + name);
    if (mine == other) {
      continue;  // config.json, tokenizer.json
    }
    write_file_atomic(newest_ + "/" + name, other);
    expect_fall_back(name == "run.json" ? "run.json is of step 1; the folder is named after step 2"
                                        : name + " is of step '1'; run.json is of step 2");
    write_file_atomic(newest_ + "/" + name, mine);
  }
  // The files agree with each other, but not with the name.
  rename_durable(older_, run_ / "step-000400");
  log_.clear();
  EXPECT_EQ(latest_checkpoint(run_.path(), Verify::all), newest_);
  EXPECT_NE(
      log_.text().find("step-000400 (run.json is of step 1; the folder is named after step 400)"),
      std::string::npos)
      << log_.text();
  // Under a name without a step, the checkpoint is valid.
  rename_durable(run_ / "step-000400", run_ / "best");
  EXPECT_EQ(Checkpoint(run_ / "best").state().step, 1);
}

TEST_F(Damage, AllDamagedIsAnError) {
  for (const std::string& folder : {older_, newest_}) {
    std::filesystem::resize_file(folder + "/model.safetensors", 9);
  }
  const std::string text = error_of([&] { latest_checkpoint(run_.path(), Verify::all); });
  EXPECT_NE(text.find("no intact checkpoint: step-000002 (model.safetensors has 9 bytes of"),
            std::string::npos)
      << text;
  EXPECT_NE(text.find("restore one, or remove them"), std::string::npos) << text;
}

TEST_F(Damage, CheckpointsWithoutChecksumsOpenWithAWarning) {
  make_old_format();
  EXPECT_EQ(latest_checkpoint(run_.path(), Verify::all), newest_);
  EXPECT_EQ(log_.text(),
            "warning: " + newest_ + ": saved without checksums; only lengths were compared");
  EXPECT_EQ(Checkpoint(newest_, Verify::lengths).state().step, 2);
  std::filesystem::resize_file(newest_ + "/model.safetensors", 100);
  expect_fall_back("model.safetensors has 100 bytes of");
}

// Any edit of run.json is at worst an error. The format without checksums is used, since a checksum
// would refuse every edit.
TEST_F(Damage, EditedRunFilesAreErrors) {
  make_old_format();
  const json good = json::parse(read_file(newest_ + "/run.json"));
  const auto put = [&](const json& object) {
    write_file_atomic(newest_ + "/run.json", object.dump());
  };
  const auto with = [&](const char* key, const json& value) {
    json object = good;
    object[key] = value;
    put(object);
    return error_of([&] { const Checkpoint c(newest_); });
  };
  EXPECT_EQ(with("step", 2), "");
  const std::vector<json> values = {nullptr,       true,           -4,         1e18,     0.5, "x",
                                    json::array(), json::object(), {{"a", 1}}, {1, 2, 3}};
  for (const auto& item : good.items()) {
    for (const json& value : values) {
      if (item.key() == "data") {
        continue;  // any JSON, not parsed
      }
      const bool legal = (item.key() == "losses" && value == json::array()) ||
                         (item.key() == "config" && value == "x");
      const std::string text = with(item.key().c_str(), value);
      EXPECT_EQ(text.empty(), legal) << item.key() << " = " << value << ": " << text;
      EXPECT_TRUE(legal || text.find(item.key() == "hocket_checkpoint" ? "hocket_checkpoint"
                                                                       : item.key()) != text.npos)
          << item.key() << " = " << value << ": " << text;
    }
  }
  for (const int64_t step : {int64_t{-4}, int64_t{1} << 62}) {
    EXPECT_NE(with("step", step).find("step is"), std::string::npos);
  }
  EXPECT_NE(with("files", json::object()).find("lacks config.json"), std::string::npos);
  json files = good["files"];
  files["../step-000001/run.json"] = 5;
  EXPECT_NE(with("files", files).find("expected files of the folder"), std::string::npos);
  EXPECT_NE(with("hocket_checkpoint", 9).find("another version"), std::string::npos);
  Rng rng(8);
  const std::string text = good.dump();
  for (int i = 0; i < 500; ++i) {
    std::string bad = text;
    for (int k = 0; k < 2; ++k) {
      bad[rng.below(bad.size())] = static_cast<char>(32 + rng.below(95));
    }
    write_file_atomic(newest_ + "/run.json", bad);
    error_of([&] { const Checkpoint c(newest_); });
  }
}

// Any edit of the parts in run.json is at worst an error, even with a matching checksum.
TEST_F(Damage, EditedPartsAreErrors) {
  const json good = json::parse(read_file(newest_ + "/run.json"));
  const auto with = [&](const std::function<void(json&)>& edit) {
    json object = good;
    edit(object);
    object.erase("xxh3");
    object["xxh3"] = hash128(object.dump()).hex();
    write_file_atomic(newest_ + "/run.json", object.dump());
    return error_of([&] { const Checkpoint c(newest_); });
  };
  const auto part = [](json& object) -> json& {
    return object["files"]["model.safetensors"]["parts"][0];
  };
  EXPECT_EQ(with([](json&) {}), "");
  const int64_t most = std::numeric_limits<int64_t>::max();
  for (const json& range : std::vector<json>{nullptr,
                                             5,
                                             json::array(),
                                             {1},
                                             {1, 2, 3},
                                             {-1, 5},
                                             {0, 0},
                                             {0, most},
                                             {most, most},
                                             {0, 4, 2, 3},
                                             {0, 4, most, most},
                                             {0, 4, 4, most},
                                             {0, 4, 4, 0},
                                             {0, 1.5},
                                             {0, "x"}}) {
    EXPECT_NE(with([&](json& object) { part(object)["ranges"][0] = range; }).find("ranges"),
              std::string::npos)
        << range;
  }
  // Each range lies within the file, but together they do not cover it.
  const std::string few = with([&](json& object) { part(object)["ranges"] = {{0, 8}}; });
  EXPECT_NE(few.find("have 8 bytes together"), std::string::npos) << few;
  for (const char* key : {"host", "rank"}) {
    for (const json& value : std::vector<json>{-1, most, "x", nullptr, 0.5}) {
      EXPECT_NE(with([&](json& object) { part(object)[key] = value; }).find(key), std::string::npos)
          << key << value;
    }
  }
  EXPECT_NE(with([&](json& object) { part(object)["xxh3"] = "0"; }).find("checksum in a part"),
            std::string::npos);
  EXPECT_NE(with([&](json& object) {
              object["hosts"] = {{{"name", "a"}, {"ranks", {0}}}};
            }).find("several hosts"),
            std::string::npos);
  EXPECT_NE(with([&](json& object) {
              object["hosts"] = {{{"name", "a"}, {"ranks", {0}}}, {{"name", "b"}, {"ranks", {1}}}};
            }).find("lacks model.part.safetensors"),
            std::string::npos);
}

// Format with one checksum per file, before parts.
TEST_F(Damage, FilesOfOneChecksumAreRead) {
  json object = json::parse(read_file(newest_ + "/run.json"));
  object["hocket_checkpoint"] = 2;
  for (auto& [name, file] : object["files"].items()) {
    file = {{"bytes", file["bytes"]}, {"xxh3", hash_file(newest_ + "/" + name).hex()}};
  }
  object.erase("xxh3");
  object["xxh3"] = hash128(object.dump()).hex();
  write_file_atomic(newest_ + "/run.json", object.dump(1));
  EXPECT_EQ(latest_checkpoint(run_.path(), Verify::all), newest_);
  EXPECT_EQ(log_.text(), "");
  std::string model = read_file(newest_ + "/model.safetensors");
  model.back() = static_cast<char>(model.back() ^ 1);
  write_file_atomic(newest_ + "/model.safetensors", model);
  expect_fall_back("model.safetensors has a wrong checksum");
}

// One sync per file, one for their folder, and one for the folder in which that was renamed.
TEST_F(Damage, EverythingIsSynced) {
  const FileFaults count(FileFaults::Op::sync, 1 << 30, 0);
  const std::string path = save(3);
  EXPECT_EQ(count.seen(), static_cast<int>(list_dir(path).size()) + 2);
}

TEST_F(Damage, AFolderThatALivingProcessWritesIsLeftAlone) {
  int ready[2];
  ASSERT_EQ(::pipe(ready), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    make_dirs(fmt::format("{}/step-000009.hocket-tmp-{}", run_.path(), ::getpid()));
    if (::write(ready[1], "", 1) == 1) {
      ::pause();
    }
    ::_exit(1);
  }
  char byte;
  ASSERT_EQ(::read(ready[0], &byte, 1), 1);
  const std::string folder = run_ / fmt::format("step-000009.hocket-tmp-{}", child);
  clean_checkpoints(run_.path());
  EXPECT_TRUE(file_exists(folder));
  ::kill(child, SIGKILL);
  ::waitpid(child, nullptr, 0);
  clean_checkpoints(run_.path());
  EXPECT_FALSE(file_exists(folder));
  ::close(ready[0]);
  ::close(ready[1]);
}

TEST_F(Damage, FilesAndDanglingLinksNamedLikeCheckpointsAreErrors) {
  ASSERT_EQ(::symlink("nowhere", (run_ / "step-000003").c_str()), 0);
  EXPECT_NE(
      error_of([&] { clean_checkpoints(run_.path()); }).find("step-000003] is a link to nothing"),
      std::string::npos);
  remove_file(run_ / "step-000003");
  write_file_atomic(run_ / "step-000003", "x");
  EXPECT_NE(error_of([&] { clean_checkpoints(run_.path()); }).find("step-000003] is a file"),
            std::string::npos);
  remove_file(run_ / "step-000003");
  // A link to a checkpoint elsewhere counts as a checkpoint.
  rename_durable(newest_, run_ / "elsewhere");
  ASSERT_EQ(::symlink("elsewhere", newest_.c_str()), 0);
  clean_checkpoints(run_.path());
  EXPECT_EQ(latest_checkpoint(run_.path(), Verify::all), newest_);
}

TEST_F(Damage, ResolveVerifiesOnlyTheRequestedFiles) {
  std::string model = read_file(newest_ + "/model.safetensors");
  model.back() = static_cast<char>(model.back() ^ 1);
  write_file_atomic(newest_ + "/model.safetensors", model);
  EXPECT_EQ(resolve_model(run_.path(), Need::config).folder, newest_);
  EXPECT_EQ(resolve_model(run_.path(), Need::weights).folder, newest_);
  EXPECT_EQ(resolve_model(run_.path(), Need::intact).folder, older_);
  EXPECT_NE(error_of([&] { resolve_model(newest_, Need::intact); }).find("model.safetensors"),
            std::string::npos);
  remove_file(newest_ + "/tokenizer.json");
  EXPECT_EQ(resolve_model(newest_, Need::config).folder, newest_);
  EXPECT_NE(
      error_of([&] { resolve_model(newest_, Need::weights); }).find("tokenizer.json is missing"),
      std::string::npos);
}

}  // namespace
}  // namespace hocket::checkpoint
