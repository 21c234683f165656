// SPDX-License-Identifier: Apache-2.0
// Adapter folders of PEFT: adapter_config.json, and A, B and the modules saved in full in
// adapter_model.safetensors.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/safetensors.h"
#include "models/config.h"
#include "models/lora.h"

namespace hocket::checkpoint {

inline constexpr const char* kAdapterConfigFile = "adapter_config.json";
inline constexpr const char* kAdapterFile = "adapter_model.safetensors";
/// The same, pickled; it is not read.
inline constexpr const char* kPickledAdapterFile = "adapter_model.bin";
/// The same of one host, where hosts share no file system.
inline constexpr const char* kAdapterPartFile = "adapter_model.part.safetensors";

/// Returns whether the folder has an adapter_config.json.
bool is_adapter(const std::string& folder);

struct AdapterConfig {
  models::Lora lora;
  std::string base;  ///< base_model_name_or_path: a MODEL; empty: not given
  /// Layout of experts by peft_version; nothing: no version, so by the shapes.
  std::optional<models::ExpertLayout> layout;
};
/// Reads an adapter_config.json. Throws Error for another method than LoRA, a variant that is not
/// supported (DoRA, QLoRA, biases, ...), and an unknown key that is set.
AdapterConfig read_adapter_config(const std::string& folder);
/// Prints an adapter_config.json, with the keys that PEFT writes. all-linear becomes the endings of
/// the modules' names.
std::string adapter_config_json(const models::LoraPlan& plan, const models::ModelConfig& model,
                                const std::string& base);
/// Returns the base model that an adapter's configuration names; a relative path that is none from
/// here is taken from the adapter's folder. Throws Error if it names none.
std::string base_of(const std::string& folder);

/// Tensors of an adapter, matched with a model.
class AdapterWeights {
 public:
  /// Throws Error for tensors that are missing, unknown or of other shapes, and for experts with an
  /// ambiguous layout. Warns if all of B is zero. `file`: other than adapter_model.safetensors.
  AdapterWeights(const std::string& folder, const models::ModelConfig& config,
                 const char* file = kAdapterFile);

  const models::LoraPlan& plan() const { return plan_; }
  const std::string& folder() const { return folder_; }
  const TensorFiles& file() const { return file_; }
  bool has(std::string_view param) const { return stored_.contains(param); }
  /// Returns the tensors that hold A, B or a module saved in full.
  const models::WeightForm& slices(std::string_view param) const;
  /// Reads elements of A, B or a module saved in full; zeros where nothing is stored.
  void load_range(std::string_view param, int64_t first, int64_t count, graph::DType dtype,
                  void* dst) const;
  /// Returns whether a module that is saved in full is a part of this parameter, and not all of it.
  bool has_part(std::string_view param) const;
  /// Reads what is stored of such a parameter's elements over those of `dst`.
  void load_over(std::string_view param, int64_t first, int64_t count, graph::DType dtype,
                 void* dst) const;
  /// Returns whether a weight of the model has an adapter.
  bool adapts(std::string_view weight) const { return targets_.contains(weight); }
  /// Adds scale * B A to elements [first, first + count) of a weight.
  void add_to(std::string_view weight, int64_t first, int64_t count, double* elements) const;

 private:
  /// A and B of a weight.
  struct Factors {
    std::string weight;
    std::vector<float> a, b;
  };
  std::string mismatch() const;
  void match(models::LoraPlan plan);
  void expect_no_other() const;
  void warn_if_zero() const;
  std::shared_ptr<const Factors> factors_of(const models::LoraTarget& target) const;

  const std::string folder_;
  TensorFiles file_;
  models::LoraPlan plan_;
  struct Stored {
    models::WeightForm form;
    int64_t numel = 0;
  };
  std::map<std::string, Stored, std::less<>> stored_;
  std::map<std::string, const models::LoraTarget*, std::less<>> targets_;
  // Parameters are read one after the other, so that the last one's factors are kept.
  mutable std::mutex mutex_;
  mutable std::shared_ptr<const Factors> last_;
};

}  // namespace hocket::checkpoint
