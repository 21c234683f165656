// SPDX-License-Identifier: Apache-2.0
// The name of a CPU, and which profiles hold on this machine.
#include "run/machine.h"

#include <gtest/gtest.h>

namespace hocket::engine {
namespace {

TEST(Machine, ReadsTheNameOfTheCpu) {
  EXPECT_EQ(
      cpu_name("processor\t: 0\nmodel name\t: AMD EPYC 9B45: 2 cores\nmodel name\t: B\n", "x"),
      "AMD EPYC 9B45: 2 cores");
  // 64-bit Arm: no model name, two kinds of cores.
  EXPECT_EQ(
      cpu_name("processor\t: 0\nCPU implementer\t: 0x41\nCPU architecture: 8\nCPU part\t: 0xd05\n\n"
               "processor\t: 1\nCPU implementer\t: 0x41\nCPU part\t: 0xd0b\n",
               "aarch64"),
      "aarch64, implementer 0x41, part 0xd05, part 0xd0b");
  EXPECT_EQ(cpu_name("", "riscv64"), "riscv64");
  EXPECT_EQ(cpu_name("model name\t:\nmodel name", "riscv64"), "riscv64");
  EXPECT_FALSE(machine_facts()["cpu"].empty());
}

TEST(Machine, TimesOfAnotherCpuOrOfOtherKernelsDoNotHold) {
  cost::Cluster here, elsewhere;
  here.cores_per_node = elsewhere.cores_per_node = 4;
  here.this_machine = true;
  const std::string cpu = machine_facts()["cpu"];
  cost::Profile profile;
  profile.machine = {{"cpu", cpu}, {"backend", "CPU, slow"}};
  EXPECT_EQ(mismatch(profile, here, "CPU, slow"), "");
  EXPECT_EQ(mismatch(profile, here, ""), "");  // nothing is executed
  EXPECT_EQ(mismatch(profile, here, "CPU, fast"),
            "was taken with the kernels 'CPU, slow'; this program runs 'CPU, fast'");
  profile.machine["cpu"] = "Z80";
  EXPECT_EQ(mismatch(profile, here, "CPU, slow"), "was taken on Z80; this is " + cpu);
  // A profile of another computer may predict the cluster, one of another device never.
  EXPECT_EQ(mismatch(profile, elsewhere, "CPU, fast"), "");
  profile.device = "H100";
  EXPECT_NE(mismatch(profile, elsewhere, "CPU, fast"), "");
  EXPECT_NE(mismatch(profile, here, "CPU, slow"), "");
  // A profile without its device is refused.
  EXPECT_EQ(mismatch({}, here, ""), "was taken on an unknown CPU; this is " + cpu);
  cost::Profile silent;
  silent.machine = {{"cpu", cpu}};
  EXPECT_EQ(mismatch(silent, here, "CPU, fast"),
            "was taken with unknown kernels; this program runs 'CPU, fast'");
}

}  // namespace
}  // namespace hocket::engine
