// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Reader of config.json, and the graph of its result, on mutated files of every family.
// HOCKET_FUZZ_SECONDS and HOCKET_SEED: see tests/fuzz_util.h.
#include <gtest/gtest.h>

#include "models/build.h"
#include "models/config.h"
#include "tests/fuzz_util.h"
#include "tests/models/small_models.h"

namespace hocket::models {
namespace {

constexpr const char* kFamilies[] = {
#define X(name) #name,
#include "models/models.inc"
#undef X
};

TEST(ModelConfig, MutatedFilesNeitherCrashNorHang) {
  std::vector<nlohmann::json> from;
  for (const char* family : kFamilies) {
    from.push_back(small_model(family));
  }
  ASSERT_GT(from.size(), 10u);
  const auto draw = [&](Rng* rng) {
    if (rng->below(8) > 0) return test::mutated_json(from, rng);
    const std::string text = from[rng->below(from.size())].dump();
    return test::mutated_bytes(text, text.size(), rng);
  };
  test::fuzz(3, draw, [](const std::string& text) {
    const ModelConfig config = parse_config(text, "c");
    parse_config(config_json(config, "float32"), "c");
    generation_config_json(config);
    if (config.num_layers > 64) return;  // the tasks grow with the layers
    BuildOptions options;
    options.tokens = 4;
    build(config, options);
  });
}

}  // namespace
}  // namespace hocket::models
