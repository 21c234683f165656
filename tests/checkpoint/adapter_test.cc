// SPDX-License-Identifier: Apache-2.0
// Folders of adapters that PEFT wrote: their configuration.
#include "checkpoint/adapter.h"

#include <gtest/gtest.h>

#include "base/file.h"
#include "tests/checkpoint/checkpoint_util.h"

namespace hocket::checkpoint {
namespace {

class AdapterFolder : public testing::Test {
 protected:
  /// Writes an adapter_config.json with more keys.
  void write_config(const std::string& keys) const {
    write_file_atomic(folder_ / kAdapterConfigFile,
                      R"({"peft_type": "LORA", "r": 2, "lora_alpha": 6)" + keys + "}");
  }
  std::string refusal() const {
    return error_of([&] { read_adapter_config(folder_.path()); });
  }

  const TempFolder folder_;
};

TEST_F(AdapterFolder, InitialNumbersOfAAndBAloneAreNoMatter) {
  for (const std::string init :
       {"true", "false", "\"gaussian\"", "\"eva\"", "\"orthogonal\"", "\"mica\""}) {
    write_config(R"(, "eva_config": {"rho": 2.0}, "init_lora_weights": )" + init);
    EXPECT_EQ(refusal(), "") << init;
  }
  for (const std::string init :
       {"\"pissa\"", "\"pissa_niter_16\"", "\"olora\"", "\"loftq\"", "\"corda\"", "\"lora_ga\""}) {
    write_config(R"(, "init_lora_weights": )" + init);
    EXPECT_NE(refusal().find("init_lora_weights is " + init), std::string::npos) << init;
  }
}

}  // namespace
}  // namespace hocket::checkpoint
