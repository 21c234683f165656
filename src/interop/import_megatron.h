// SPDX-License-Identifier: Apache-2.0
// A script of Megatron-LM on its way to the keys of a run: what the files that read its parts
// share.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "interop/foreign.h"
#include "interop/megatron_arguments.h"

namespace hocket::interop {

class MegatronImport {
 public:
  MegatronImport(const std::string& text, const std::string& name, const RanksOfFile& ranks,
                 const Beside& beside)
      : arguments_(text, name),
        name_(name),
        ranks_(ranks),
        beside_(beside),
        has_model_(beside.has_model()) {}

  /// Reads the model, the mesh, and the training settings that a run has keys for.
  Imported run();

 private:
  void set(const std::string& key, const std::string& value) { imported_.keys[key] = value; }
  void set(const std::string& key, int64_t value) { set(key, std::to_string(value)); }
  void set(const std::string& key, double value) { set(key, fmt::format("{}", value)); }
  void set(const std::string& key, bool value) { set(key, std::string(value ? "true" : "false")); }
  void copy(const std::string& flag, const std::string& key) {
    if (arguments_.has(flag)) {
      set(key, arguments_.at_least(0, flag, 0));
    }
  }
  void need_key(const std::string& flag, const std::string& key, const std::string& why);
  void expect_one_of(const std::string& flag, const std::vector<std::string>& values);

  // import_megatron.cc
  void read_model();
  void read_mesh();
  void read_tiles();
  void read_experts();
  void read_context();
  void read_batch();
  void add_reasons();

  // megatron_pipeline.cc
  void read_pipeline();
  void read_groups_of_micro_batches(int64_t chunks);
  void expect_pipeline(int64_t chunks);
  int64_t read_chunks();
  int64_t layers_and_ends();
  bool counts_embedding() { return arguments_.has("--account-for-embedding-in-pipeline-split"); }
  bool counts_loss() { return arguments_.has("--account-for-loss-in-pipeline-split"); }
  void read_even(int64_t chunks);
  void read_ends(int64_t first, int64_t last, int64_t chunks);
  int64_t read_layout(const std::string& text);

  // megatron_memory.cc
  void read_sharding();
  void read_gathers(const std::string& split);
  void read_recompute();
  void read_recompute_layers();
  void read_recompute_modules();

  // megatron_training.cc
  void read_training();
  double balance_coef();
  void read_float8();
  void read_optimizer();
  void read_decay();
  bool read_stable();
  int64_t decay_steps();
  void read_warmup();
  int64_t read_steps(const std::string& flag, const std::string& samples, const std::string& key);

  MegatronArguments arguments_;
  std::string name_;
  RanksOfFile ranks_;
  Beside beside_;
  bool has_model_ = false;
  int64_t layers_ = 0;  ///< 0: the script does not say
  int64_t steps_ = 0;   ///< likewise
  int64_t tp_ = 1, pp_ = 1, cp_ = 1, dp_ = 1, global_batch_ = 1;
  Imported imported_;
};

}  // namespace hocket::interop
