// SPDX-License-Identifier: Apache-2.0
// Reader of torchtitan's configurations: a job file (TOML), or the JSON of a configuration. The
// files that read its parts share this class.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <string>
#include <vector>

#include "interop/foreign.h"
#include "interop/settings.h"

namespace hocket::interop {

class TorchtitanImport {
 public:
  TorchtitanImport(const std::string& text, const std::string& name, const RanksOfFile& ranks,
                   const Beside& beside);

  Imported run();

 private:
  static bool is_json(const std::string& text);
  void set(const std::string& key, const std::string& value) { imported_.keys[key] = value; }
  void set(const std::string& key, int64_t value) { set(key, std::to_string(value)); }
  void set(const std::string& key, double value) { set(key, fmt::format("{:.12g}", value)); }
  void set(const std::string& key, bool value) { set(key, std::string(value ? "true" : "false")); }

  void read_model();
  int64_t degree(const std::string& axis, int64_t otherwise = 1);
  void read_mesh();
  void read_degrees();
  void read_context();
  void read_nodes(int64_t ranks);
  void read_sharding();
  void add_reasons();

  // torchtitan_pipeline.cc
  void read_pipeline();
  int64_t less_layers(const char* stage);
  bool follows_their_rule();
  int64_t chunks_of(int64_t per_stage, int64_t otherwise);
  void share_layers_out();
  std::vector<int64_t> layers_of_parts();

  // torchtitan_training.cc
  void read_precision();
  bool had_float8();
  std::string precision(const std::string& path, const std::string& otherwise);
  void read_training();
  void read_batch(int64_t dp);
  void read_tokens(int64_t dp);
  int64_t sequences_of_a_pass(int64_t local);
  std::string checkpointing();
  void read_optimizer();
  void read_decay();
  void read_intervals();

  bool is_json_ = false;
  Settings job_;
  std::string name_;
  RanksOfFile ranks_;
  Beside beside_;
  int64_t layers_ = 0;  ///< of the model; 0: not known
  int64_t tp_ = 1, pp_ = 1, cp_ = 1, replicate_ = 1, split_ = 1;
  int64_t stages_ = 1;  ///< of the pipeline, chunks of a rank counted
  Imported imported_;
};

}  // namespace hocket::interop
