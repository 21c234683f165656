// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Model folders in every supported form, checkpoints under injected faults, and resolution of
// MODEL.
#include "checkpoint/checkpoint.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "base/error.h"
#include "base/rng.h"
#include "checkpoint/model_weights.h"
#include "checkpoint/resolve.h"
#include "models/build.h"
#include "tests/checkpoint/checkpoint_util.h"

namespace hocket::checkpoint {
namespace {

using graph::DType;
using models::ModelConfig;

struct Content {
  ModelConfig config;
  std::vector<std::vector<char>> storage;
  std::vector<NamedTensor> params, optimizer;
  CheckpointContent c;
  Content(const std::string& family, DType dtype, int64_t step, bool tied = false)
      : config(small_config(family, tied)) {
    params = random_params(config, dtype, static_cast<uint64_t>(step), storage);
    for (const char* moment : {"exp_avg.", "exp_avg_sq."}) {
      for (NamedTensor t : random_params(config, dtype, hash_name(moment), storage)) {
        t.name = moment + t.name;
        optimizer.push_back(std::move(t));
      }
    }
    c.params = shared(params);
    c.optimizer = shared(optimizer);
    c.config = &config;
    c.state.step = step;
    c.state.seed = ~uint64_t{0};
    c.state.config = "model: x\n";
    c.state.data = R"({"epoch":3})";
    c.state.losses = {{1, 0.1}, {2, 1.0 / 3}, {3, std::nan("")}, {4, 1e-310}};
    c.files["tokenizer.json"] = "{}";
  }
  // Growing `storage` moved the vectors but not their bytes; it grows no more from here on.
  Content(const Content&) = delete;
};

void expect_equal(const Checkpoint& got, const Content& content) {
  const CheckpointContent& want = content.c;
  for (const NamedTensor& t : content.params) {
    std::vector<char> bytes(static_cast<size_t>(t.type.bytes()));
    got.load_range(t.name, 0, t.type.numel(), t.type.dtype, bytes.data());
    EXPECT_EQ(0, std::memcmp(bytes.data(), t.data, bytes.size())) << t.name;
  }
  for (const NamedTensor& t : content.optimizer) {
    std::vector<char> bytes(static_cast<size_t>(t.type.bytes()));
    got.load_optimizer_range(t.name, t.type, 0, t.type.numel(), bytes.data());
    EXPECT_EQ(0, std::memcmp(bytes.data(), t.data, bytes.size())) << t.name;
  }
  EXPECT_EQ(got.state().step, want.state.step);
  EXPECT_EQ(got.state().seed, want.state.seed);
  EXPECT_EQ(got.state().config, want.state.config);
  EXPECT_EQ(got.state().data, want.state.data);
  ASSERT_EQ(got.state().losses.size(), want.state.losses.size());
  for (size_t i = 0; i < want.state.losses.size(); ++i) {
    const double a = got.state().losses[i].second, b = want.state.losses[i].second;
    EXPECT_TRUE(a == b || (std::isnan(a) && std::isnan(b))) << i;
  }
}

TEST(Checkpoint, RoundTripIsBitExact) {
  for (const std::string& family : models::families()) {
    for (DType dtype : {DType::f32, DType::f64}) {
      for (bool tied : {false, true}) {
        const TempFolder run;
        const Content content(family, dtype, 12, tied);
        const std::string path = save_checkpoint(run.path(), content.c);
        EXPECT_EQ(path, run / "step-000012");
        const Checkpoint back(path);
        expect_equal(back, content);
        const TensorFiles model(path);
        std::set<std::string> names;
        for (const models::ParamWeights& param : models::weight_map(content.config)) {
          for (const models::WeightSlice& slice : param.forms[0]) {
            names.insert(slice.name);
            EXPECT_EQ(model.find(slice.name).tensor->type, stored_type(dtype));
            EXPECT_EQ(model.find(slice.name).tensor->dims, slice.dims);
          }
        }
        EXPECT_EQ(model.names(), std::vector<std::string>(names.begin(), names.end()));
        EXPECT_EQ(names.contains("lm_head.weight") || names.contains("embed_out.weight"), !tied);
        EXPECT_EQ(nlohmann::json::parse(read_file(path + "/config.json"))["torch_dtype"],
                  dtype == DType::f32 ? "float32" : "float64");
        EXPECT_EQ(read_file(path + "/tokenizer.json"), "{}");
      }
    }
  }
}

TEST(Checkpoint, ReadsAnyRangeOfAParameter) {
  for (const std::string& family : models::families()) {
    const TempFolder run;
    const Content content(family, DType::f32, 1);
    const Checkpoint back(save_checkpoint(run.path(), content.c));
    Rng rng(5);
    for (const NamedTensor& t : content.params) {
      const int64_t n = t.type.numel();
      for (int i = 0; i < 20; ++i) {
        const int64_t first = rng.between(0, n), count = rng.between(0, n - first);
        std::vector<float> part(static_cast<size_t>(count) + 1, -7);
        back.load_range(t.name, first, count, DType::f32, part.data());
        EXPECT_EQ(0, std::memcmp(part.data(), static_cast<const float*>(t.data) + first,
                                 static_cast<size_t>(count) * 4))
            << family << " " << t.name << " " << first << " + " << count;
        EXPECT_EQ(part.back(), -7);
      }
    }
  }
}

// Ranks with any parts of a parameter write the same file.
TEST(Checkpoint, RanksWriteAnyPartsOfAParameter) {
  for (const std::string& family : models::families()) {
    Content content(family, DType::f32, 3);
    const TempFolder run;
    const std::string whole =
        read_file(save_checkpoint(run.path(), content.c) + "/model.safetensors");
    Rng rng(7);
    for (size_t i = 0; i < content.c.params.size(); ++i) {
      const NamedTensor& t = content.params[i];
      std::vector<Share> shares;
      for (int64_t first = 0; first < t.type.numel();) {
        const int64_t count = std::min(rng.between(1, 60), t.type.numel() - first);
        shares.push_back({static_cast<int32_t>(rng.between(0, 3)), first, count,
                          static_cast<const float*>(t.data) + first});
        first += count;
      }
      content.c.params[i].shares = [shares] { return shares; };
    }
    const TempFolder other;
    const std::string path = save_checkpoint(other.path(), content.c);
    EXPECT_EQ(read_file(path + "/model.safetensors"), whole) << family;
    EXPECT_NO_THROW(verify_checkpoint(path, Verify::all)) << family;
  }
}

TEST(Checkpoint, LatestSkipsIncompleteOnes) {
  const TempFolder run;
  EXPECT_FALSE(latest_checkpoint(run.path(), Verify::all).has_value());
  EXPECT_FALSE(latest_checkpoint(run / "absent", Verify::all).has_value());
  for (int64_t step : {9, 100, 30}) {
    save_checkpoint(run.path(), Content("llama", DType::f32, step).c);
  }
  EXPECT_EQ(latest_checkpoint(run.path(), Verify::all), run / "step-000100");
  std::filesystem::resize_file(run / "step-000100/optimizer.safetensors", 50);
  EXPECT_EQ(latest_checkpoint(run.path(), Verify::all), run / "step-000030");
  EXPECT_NE(
      error_of([&] { const Checkpoint c(run / "step-000100"); }).find("optimizer.safetensors"),
      std::string::npos);
  remove_file(run / "step-000030/model.safetensors");
  EXPECT_EQ(latest_checkpoint(run.path(), Verify::all), run / "step-000009");
  // Folders with other names are no checkpoints.
  make_dirs(run / "step-1x");
  make_dirs(run / "step-000200.hocket-tmp-1");
  EXPECT_EQ(list_checkpoints(run.path()).size(), 3u);
  write_file_atomic(run / "step-000009/run.json", "{\"files\"");
  const std::string text = error_of([&] { latest_checkpoint(run.path(), Verify::all); });
  for (const char* part :
       {"step-000100 (optimizer", "step-000030 (model", "step-000009 (", "remove"}) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  }
}

TEST(Checkpoint, PruneKeepsTheLastSaved) {
  const TempFolder run;
  const auto steps = [&run] {
    std::vector<int64_t> list;
    for (const auto& [step, path] : list_checkpoints(run.path())) {
      list.push_back(step);
    }
    return list;
  };
  // Sorted by number, not by name: step-1000000 follows step-999999.
  for (int64_t step : {3, 20, 999999, 1000000}) {
    save_checkpoint(run.path(), Content("llama", DType::f32, step).c);
  }
  prune_checkpoints(run.path(), 20, 1);
  EXPECT_EQ(steps(), (std::vector<int64_t>{20, 999999, 1000000}));
  prune_checkpoints(run.path(), 1000000, 0);
  EXPECT_EQ(steps().size(), 3u);
  prune_checkpoints(run.path(), 1000000, 2);
  EXPECT_EQ(steps(), (std::vector<int64_t>{999999, 1000000}));
}

// A folder that only has a checkpoint's name belongs to someone else and is not counted.
TEST(Checkpoint, PruneLeavesOtherFolders) {
  const TempFolder run;
  for (const char* name : {"step-000001", "step-000004"}) {
    make_dirs(run / name);
    write_file_atomic(run / name + "/mine.txt", "mine");
  }
  for (int64_t step : {2, 3, 5}) {
    save_checkpoint(run.path(), Content("llama", DType::f32, step).c);
  }
  write_file_atomic(run / "step-000002/model.safetensors", "damaged");
  prune_checkpoints(run.path(), 5, 2);
  EXPECT_EQ(list_checkpoints(run.path()).size(), 5u);
  prune_checkpoints(run.path(), 5, 1);
  EXPECT_EQ(list_dir(run.path()),
            (std::vector<std::string>{"step-000001", "step-000002", "step-000004", "step-000005"}));
  EXPECT_EQ(read_file(run / "step-000001/mine.txt"), "mine");
}

TEST(Checkpoint, SavingTheSameStepReplaces) {
  const TempFolder run;
  save_checkpoint(run.path(), Content("llama", DType::f32, 5).c);
  Content other("llama", DType::f32, 5);
  other.c.state.config = "changed";
  save_checkpoint(run.path(), other.c);
  EXPECT_EQ(Checkpoint(run / "step-000005").state().config, "changed");
  EXPECT_EQ(list_dir(run.path()), (std::vector<std::string>{"step-000005"}));
}

// Fails every write, sync, open and rename of a save once: the older checkpoint stays the newest.
TEST(Checkpoint, EveryFaultLeavesTheOldOnes) {
  using Op = FileFaults::Op;
  const TempFolder run;
  const Content old("llama", DType::f32, 1), next("llama", DType::f32, 2);
  save_checkpoint(run.path(), old.c);
  for (Op op : {Op::open, Op::write, Op::sync, Op::rename}) {
    int operations = 0;
    for (int nth = 1;; ++nth) {
      bool failed = false;
      {
        const FileFaults fault(op, nth, ENOSPC);
        try {
          save_checkpoint(run.path(), next.c);
        } catch (const Error& e) {
          failed = true;
          EXPECT_EQ(e.exit_code(), 1) << e.what();
        }
      }
      if (!failed) break;
      ++operations;
      // A folder is complete if its sync failed after the rename.
      const auto latest = latest_checkpoint(run.path(), Verify::all);
      ASSERT_TRUE(latest.has_value());
      if (op != Op::sync) {
        EXPECT_EQ(*latest, run / "step-000001");
      }
      for (const std::string& name : list_dir(run.path())) {
        EXPECT_EQ(name.find("tmp"), std::string::npos) << name;
      }
      expect_equal(Checkpoint(run / "step-000001"), old);
    }
    EXPECT_GT(operations, 0);
    if (op == Op::sync) {
      // Every file, their folder, and the folder in which it was renamed.
      EXPECT_EQ(operations, static_cast<int>(list_dir(run / "step-000002").size()) + 2);
    }
    expect_equal(Checkpoint(run / "step-000002"), next);
    remove_tree(run / "step-000002");
  }
}

TEST(Checkpoint, AKillAtAnyInstantLeavesACompleteOne) {
  const TempFolder run;
  const Content old("llama", DType::f64, 1), next("llama", DType::f64, 2);
  save_checkpoint(run.path(), old.c);
  Rng rng(11);
  for (int i = 0; i < 20; ++i) {
    const pid_t child = fork();
    if (child == 0) {
      for (;;) {
        save_checkpoint(run.path(), next.c);
      }
    }
    ::usleep(static_cast<useconds_t>(rng.below(40'000)));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    const auto latest = latest_checkpoint(run.path(), Verify::all);
    ASSERT_TRUE(latest.has_value());
    expect_equal(Checkpoint(*latest), *latest == run / "step-000002" ? next : old);
  }
  clean_checkpoints(run.path());
  for (const std::string& name : list_dir(run.path())) {
    EXPECT_EQ(name.find("tmp"), std::string::npos) << name;
  }
}

// --- model folders ----------------------------------------------------------------------------

TEST(ModelWeights, ReadsEveryForm) {
  for (const std::string& family : models::families()) {
    const ModelConfig config = small_config(family);
    const std::string prefix = models::weight_prefixes(config)[0];
    std::vector<std::vector<char>> storage;
    const std::vector<NamedTensor> params = random_params(config, DType::f32, 3, storage);
    const auto map = models::weight_map(config);
    for (const bool bare : {false, true}) {
      for (const bool fused : {false, true}) {
        std::vector<SlicedParameter> sliced;
        for (size_t i = 0; i < map.size(); ++i) {
          sliced.push_back({params[i], fused ? map[i].forms.back() : map[i].forms[0]});
        }
        std::vector<NamedTensor> stored = to_stored(sliced);
        const float unused = 1;
        stored.push_back(
            {prefix + "layers.0.self_attn.rotary_emb.inv_freq", {DType::f32, {1}}, &unused});
        for (NamedTensor& tensor : stored) {
          if (bare && tensor.name.starts_with(prefix)) {
            tensor.name.erase(0, prefix.size());
          }
        }
        const TempFolder folder;
        save_safetensors(folder / "model.safetensors", stored);
        const ModelWeights weights(folder.path(), config);
        for (const NamedTensor& t : params) {
          std::vector<char> bytes(static_cast<size_t>(t.type.bytes()));
          weights.load_range(t.name, 0, t.type.numel(), DType::f32, bytes.data());
          EXPECT_EQ(0, std::memcmp(bytes.data(), t.data, bytes.size())) << t.name;
          for (const auto& s : weights.slices(t.name)) {
            EXPECT_NE(weights.file().find(s.name).tensor, nullptr) << s.name;
          }
        }
      }
    }
  }
}

TEST(ModelWeights, WrongFilesNameTheTensor) {
  const ModelConfig config = small_config("qwen3_moe");
  std::vector<std::vector<char>> storage;
  const auto params = random_params(config, DType::f32, 3, storage);
  const std::vector<NamedTensor> good = to_stored(config, params);
  const auto open = [&config](const std::vector<NamedTensor>& tensors) {
    const TempFolder folder;
    save_safetensors(folder / "model.safetensors", tensors);
    return error_of([&] { const ModelWeights w(folder.path(), config); });
  };
  EXPECT_EQ(open(good), "");
  std::vector<NamedTensor> bad(good.begin() + 1, good.end());
  EXPECT_NE(open(bad).find(good[0].name), std::string::npos) << open(bad);
  bad = good;
  bad[3].type.dims = {bad[3].type.dims[1], bad[3].type.dims[0]};
  EXPECT_NE(open(bad).find("has shape"), std::string::npos) << open(bad);
  EXPECT_NE(open(bad).find(good[3].name), std::string::npos) << open(bad);
  bad = good;
  bad.push_back({"model.layers.0.self_attn.q_proj.bias", {DType::f32, {1}}, good[0].data});
  EXPECT_NE(open(bad).find("q_proj.bias"), std::string::npos) << open(bad);
}

TEST(ModelWeights, NamesMayHaveTheWrappersOfPyTorchAndOtherBegins) {
  const ModelConfig config = small_config("llama");
  std::vector<std::vector<char>> storage;
  const auto params = random_params(config, DType::f32, 3, storage);
  const std::vector<NamedTensor> good = to_stored(config, params);
  for (const std::string wrapper : {"module.", "_orig_mod.", "_orig_mod.module."}) {
    std::vector<NamedTensor> stored = good;
    for (NamedTensor& tensor : stored) {
      tensor.name = wrapper + tensor.name;
    }
    const TempFolder folder;
    save_safetensors(folder / "model.safetensors", stored);
    const ModelWeights weights(folder.path(), config);
    float got = 0;
    weights.load_range(params[0].name, 3, 1, DType::f32, &got);
    EXPECT_EQ(got, static_cast<const float*>(params[0].data)[3]);
    EXPECT_EQ(weights.slices(params[0].name)[0].name, wrapper + params[0].name);
    // One name without it is not the same model.
    stored[1].name = good[1].name;
    save_safetensors(folder / "model.safetensors", stored);
    EXPECT_NE(error_of([&] { const ModelWeights w(folder.path(), config); }), "");
  }
}

TEST(ModelWeights, ATiedModelMayStoreTheHeadAlone) {
  const ModelConfig config = small_config("llama", true);
  std::vector<std::vector<char>> storage;
  const auto params = random_params(config, DType::f32, 3, storage);
  std::vector<NamedTensor> stored = to_stored(config, params);
  for (NamedTensor& tensor : stored) {
    if (tensor.name == "model.embed_tokens.weight") {
      tensor.name = "lm_head.weight";
    }
  }
  const TempFolder folder;
  save_safetensors(folder / "model.safetensors", stored);
  const ModelWeights weights(folder.path(), config);
  const auto slices = weights.slices("model.embed_tokens.weight");
  ASSERT_EQ(slices.size(), 1u);
  EXPECT_EQ(slices[0].name, "lm_head.weight");
  // Not without tying.
  EXPECT_NE(error_of([&] {
              const ModelWeights w(folder.path(), small_config("llama"));
            }).find("embed_tokens"),
            std::string::npos);
}

// As transformers does: names of the index that no shard holds matter if the model needs them.
TEST(ModelWeights, AnIndexMayNameWhatNoShardHolds) {
  const ModelConfig config = small_config("llama");
  std::vector<std::vector<char>> storage;
  const auto params = random_params(config, DType::f32, 3, storage);
  std::vector<NamedTensor> stored = to_stored(config, params);
  const TempFolder folder;
  nlohmann::json map;
  for (const NamedTensor& tensor : stored) {
    map[tensor.name] = "m.safetensors";
  }
  map["mtp.fc.weight"] = "m.safetensors";
  write_output(folder / "model.safetensors.index.json", [&](FileWriter& out) {
    out.write(nlohmann::json{{"weight_map", map}}.dump());
  });
  save_safetensors(folder / "m.safetensors", stored);
  EXPECT_NO_THROW(ModelWeights(folder.path(), config));
  const std::string lost = stored.back().name;
  stored.pop_back();
  save_safetensors(folder / "m.safetensors", stored);
  const std::string error = error_of([&] { const ModelWeights w(folder.path(), config); });
  EXPECT_NE(error.find(lost), std::string::npos) << error;
  EXPECT_NE(error.find("the index says that"), std::string::npos) << error;
}

TEST(ModelWeights, ATiedHeadMayRepeatButNotDiffer) {
  const ModelConfig config = small_config("llama", true);
  std::vector<std::vector<char>> storage;
  const auto params = random_params(config, DType::f32, 3, storage);
  std::vector<NamedTensor> stored = to_stored(config, params);
  const NamedTensor& embed = params[0];
  ASSERT_EQ(embed.name, "model.embed_tokens.weight");
  stored.push_back({"lm_head.weight", embed.type, embed.data});
  const TempFolder folder;
  save_safetensors(folder / "model.safetensors", stored);
  EXPECT_EQ(ModelWeights(folder.path(), config).slices(embed.name).size(), 2u);
  std::vector<float> other(static_cast<size_t>(embed.type.numel()));
  std::memcpy(other.data(), embed.data, other.size() * sizeof(float));
  stored.back().data = other.data();
  for (float* x : {&other.front(), &other.back()}) {
    *x += 1;
    save_safetensors(folder / "model.safetensors", stored);
    const std::string text = error_of([&] { const ModelWeights w(folder.path(), config); });
    EXPECT_NE(text.find("lm_head.weight"), std::string::npos) << text;
    *x -= 1;
  }
}

// --- resolution of MODEL -----------------------------------------------------------------------

class Environment {
 public:
  Environment(const char* name, const std::string& value) : name_(name) {
    if (const char* old = std::getenv(name)) {
      old_ = old;
    }
    ::setenv(name, value.c_str(), 1);
  }
  ~Environment() { old_ ? ::setenv(name_, old_->c_str(), 1) : ::unsetenv(name_); }

 private:
  const char* name_;
  std::optional<std::string> old_;
};

TEST(Resolve, FindsFoldersRunsFilesAndTheHubCache) {
  const TempFolder top;
  const Content content("llama", DType::f32, 7);
  save_checkpoint(top / "run", content.c);
  save_checkpoint(top / "other/checkpoints", content.c);
  EXPECT_EQ(resolve_model(top / "run", Need::intact).folder, top / "run/step-000007");
  EXPECT_TRUE(resolve_model(top / "run", Need::intact).is_checkpoint);
  EXPECT_EQ(resolve_model(top / "other", Need::intact).folder,
            top / "other/checkpoints/step-000007");
  const std::string step = top / "run/step-000007";
  EXPECT_EQ(resolve_model(step, Need::weights).folder, step);
  EXPECT_EQ(resolve_model(step + "/config.json", Need::weights).config_file, step + "/config.json");
  EXPECT_NE(error_of([&] {
              resolve_model(step + "/model.safetensors", Need::weights);
            }).find("not a model"),
            std::string::npos);
  make_dirs(top / "bare");
  EXPECT_NE(error_of([&] { resolve_model(top / "bare", Need::weights); }).find("no config.json"),
            std::string::npos);
  write_file_atomic(top / "bare/config.json", read_file(step + "/config.json"));
  EXPECT_NE(error_of([&] { resolve_model(top / "bare", Need::weights); }).find("safetensors"),
            std::string::npos);
  EXPECT_FALSE(resolve_model(top / "bare", Need::config).has_weights);

  const Environment no_cache("HF_HUB_CACHE", "");
  const Environment home("HF_HOME", top / "hf");
  EXPECT_NE(
      error_of([&] { resolve_model("org/name", Need::weights); }).find("hf download org/name"),
      std::string::npos);
  EXPECT_NE(error_of([&] { resolve_model("../org/name", Need::weights); }).find("no such file"),
            std::string::npos);
  const std::string hub = top / "hf/hub/models--org--name";
  for (const char* hash : {"aaa", "bbb"}) {
    make_dirs(hub + "/snapshots/" + hash);
    for (const char* file : {"config.json", "model.safetensors"}) {
      write_file_atomic(hub + "/snapshots/" + hash + "/" + file, read_file(step + "/" + file));
    }
  }
  make_dirs(hub + "/refs");
  write_file_atomic(hub + "/refs/main", "aaa\n");
  EXPECT_EQ(resolve_model("org/name", Need::weights).folder, hub + "/snapshots/aaa");
  write_file_atomic(hub + "/refs/main", "../../..");
  EXPECT_NE(resolve_model("org/name", Need::weights).folder.find("/snapshots/"), std::string::npos);
}

}  // namespace
}  // namespace hocket::checkpoint
