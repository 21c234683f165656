// SPDX-License-Identifier: Apache-2.0
#include "tests/checkpoint/checkpoint_util.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstring>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "base/file.h"
#include "base/rng.h"
#include "checkpoint/model_weights.h"
#include "models/weights.h"
#include "tests/models/small_models.h"

namespace hocket::checkpoint {

TempFolder::TempFolder() {
  static int count = 0;
  path_ = fmt::format("{}hocket-checkpoint-{}-{}", ::testing::TempDir(), ::getpid(), count++);
  remove_tree(path_);
  make_dirs(path_);
}
TempFolder::~TempFolder() { remove_tree(path_); }

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& e) {
    EXPECT_EQ(e.exit_code(), 2) << e.what();
    return e.what();
  }
  return "";
}

models::ModelConfig small_config(const std::string& family, bool tied) {
  nlohmann::json c = models::small_model(family, 2);
  c["tie_word_embeddings"] = tied;
  return models::parse_config(c.dump(), "test");
}

std::vector<NamedTensor> random_params(const models::ModelConfig& config, graph::DType dtype,
                                       uint64_t seed, std::vector<std::vector<char>>& storage) {
  std::vector<NamedTensor> params;
  for (const models::ParamWeights& w : models::weight_map(config)) {
    NamedTensor t{w.param, {dtype, w.dims}};
    const auto n = static_cast<size_t>(t.type.numel());
    std::vector<char>& bytes = storage.emplace_back(n * static_cast<size_t>(graph::size_of(dtype)));
    Rng rng(seed ^ hash_name(w.param));
    for (size_t i = 0; i < n; ++i) {
      const double x = rng.normal();
      const auto f = static_cast<float>(x);
      if (dtype == graph::DType::f64) {
        std::memcpy(&bytes[i * 8], &x, 8);
      } else {
        std::memcpy(&bytes[i * 4], &f, 4);
      }
    }
    params.push_back(std::move(t));
  }
  // Pointers are taken last: the outer vector may have moved while it grew.
  for (size_t i = 0; i < params.size(); ++i) {
    params[i].data = storage[storage.size() - params.size() + i].data();
  }
  return params;
}

std::vector<NamedTensor> to_stored(const models::ModelConfig& config,
                                   const std::vector<NamedTensor>& params) {
  const std::vector<models::ParamWeights> map = models::weight_map(config);
  std::vector<SlicedParameter> sliced;
  for (size_t i = 0; i < params.size(); ++i) {
    sliced.push_back({params[i], map[i].forms[0]});
  }
  return to_stored(sliced);
}

std::vector<SharedTensor> shared(const std::vector<NamedTensor>& tensors) {
  std::vector<SharedTensor> list;
  for (const NamedTensor& tensor : tensors) {
    const int64_t count = tensor.type.numel();
    list.push_back({tensor.name, tensor.type, [count, data = tensor.data] {
                      return std::vector<Share>{{0, 0, count, data}};
                    }});
  }
  return list;
}

}  // namespace hocket::checkpoint
