// SPDX-License-Identifier: Apache-2.0
// Rank and address of a process, as stated by launchers.
#include "comm/launch.h"

#include <gtest/gtest.h>

#include <map>
#include <string>
#include <string_view>

#include "base/error.h"

namespace hocket::comm {
namespace {

using Variables = std::map<std::string, std::string>;

LaunchInfo info_of(const Variables& variables) {
  return launch_info([&](const char* name) -> const char* {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}

std::string error_of(const Variables& variables) {
  try {
    info_of(variables);
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

TEST(Launch, WithoutALauncherThereIsOneRank) {
  EXPECT_EQ(info_of({}), LaunchInfo());
  EXPECT_EQ(info_of({{"RANK", "3"}}), LaunchInfo());
  // One process is on one host, whatever a batch system reports about others.
  EXPECT_EQ(info_of({{"RANK", "0"}, {"WORLD_SIZE", "1"}, {"MASTER_ADDR", "host"}}),
            (LaunchInfo{0, 1, 0, 1, "host", 29500, 0, false, "a launcher (RANK, WORLD_SIZE)"}));
  EXPECT_EQ(info_of({{"SLURM_PROCID", "0"},
                     {"SLURM_NTASKS", "1"},
                     {"SLURM_STEP_ID", "0"},
                     {"SLURM_NTASKS_PER_NODE", "8"}}),
            (LaunchInfo{0, 1, 0, 1, "127.0.0.1", 29500, 0, false, "srun"}));
}

TEST(Launch, ReadsTheVariablesOfTorchrun) {
  const LaunchInfo info = info_of({{"RANK", "5"},
                                   {"WORLD_SIZE", "8"},
                                   {"LOCAL_RANK", "1"},
                                   {"LOCAL_WORLD_SIZE", "4"},
                                   {"MASTER_ADDR", "host0"},
                                   {"MASTER_PORT", "1234"},
                                   {"TORCHELASTIC_RESTART_COUNT", "2"},
                                   {"TORCHELASTIC_USE_AGENT_STORE", "True"}});
  EXPECT_EQ(info,
            (LaunchInfo{5, 8, 1, 4, "host0", 1234, 2, true, "a launcher (RANK, WORLD_SIZE)"}));
}

TEST(Launch, ReadsTheVariablesOfMpirun) {
  const LaunchInfo info = info_of({{"OMPI_COMM_WORLD_RANK", "1"},
                                   {"OMPI_COMM_WORLD_SIZE", "2"},
                                   {"OMPI_COMM_WORLD_LOCAL_RANK", "1"},
                                   {"OMPI_COMM_WORLD_LOCAL_SIZE", "2"}});
  EXPECT_EQ(info, (LaunchInfo{1, 2, 1, 2, "127.0.0.1", 29500, 0, false, "mpirun"}));
  const std::string error = error_of({{"OMPI_COMM_WORLD_RANK", "1"},
                                      {"OMPI_COMM_WORLD_SIZE", "2"},
                                      {"OMPI_COMM_WORLD_LOCAL_RANK", "0"},
                                      {"OMPI_COMM_WORLD_LOCAL_SIZE", "1"}});
  EXPECT_NE(error.find("MASTER_ADDR is not set"), std::string::npos) << error;
}

TEST(Launch, ReadsTheVariablesOfSrun) {
  Variables variables = {{"SLURM_PROCID", "2"},
                         {"SLURM_NTASKS", "4"},
                         {"SLURM_STEP_ID", "3"},
                         {"SLURM_LOCALID", "0"},
                         {"SLURM_NTASKS_PER_NODE", "2"}};
  for (const auto& [list, first] : Variables{
           {"node[03-05,9],other", "node03"}, {"a,b", "a"}, {"a,b[1-2]", "a"}, {"one", "one"}}) {
    variables["SLURM_STEP_NODELIST"] = list;
    EXPECT_EQ(info_of(variables).address, first) << list;
  }
  variables["MASTER_ADDR"] = "given";
  EXPECT_EQ(info_of(variables), (LaunchInfo{2, 4, 0, 2, "given", 29500, 0, false, "srun"}));
}

TEST(Launch, SrunListsTheTasksOfAllNodes) {
  // Variables of `srun -n 11` on three nodes, which sets no SLURM_NTASKS_PER_NODE.
  for (const auto& [node, tasks] : std::map<std::string, int32_t>{{"0", 4}, {"1", 4}, {"2", 3}}) {
    Variables variables = {{"SLURM_PROCID", "2"},
                           {"SLURM_NTASKS", "11"},
                           {"SLURM_STEP_ID", "0"},
                           {"SLURM_LOCALID", "1"},
                           {"SLURM_NODEID", node},
                           {"SLURM_STEP_NODELIST", "a,b,c"},
                           {"SLURM_TASKS_PER_NODE", "4(x2),3"}};
    EXPECT_EQ(info_of(variables).local_size, tasks) << node;
    variables["SLURM_STEP_TASKS_PER_NODE"] = "5(x2),1";
    EXPECT_EQ(info_of(variables).local_size, node == "2" ? 1 : 5) << node;
    for (const char* wrong : {"4(x2", "4x2", "12", "0(x3)", "4", ""}) {
      variables["SLURM_STEP_TASKS_PER_NODE"] = wrong;
      if (std::string_view(wrong) == "4" && node == "0") continue;
      EXPECT_NE(error_of(variables).find("SLURM_STEP_TASKS_PER_NODE="), std::string::npos) << wrong;
    }
  }
}

TEST(Launch, ScriptsOfSbatchRunAlone) {
  Variables variables = {
      {"SLURM_PROCID", "0"}, {"SLURM_NTASKS", "4"}, {"SLURM_STEP_NODELIST", "a,b"}};
  EXPECT_EQ(info_of(variables), LaunchInfo());
  // An interactive step, and the step of the script itself.
  for (const char* step : {"4294967290", "4294967291", "batch"}) {
    variables["SLURM_STEP_ID"] = step;
    EXPECT_EQ(info_of(variables), LaunchInfo()) << step;
  }
  variables["SLURM_STEP_ID"] = "0";
  variables["SLURM_TASKS_PER_NODE"] = "2(x2)";
  EXPECT_EQ(info_of(variables).size, 4);
}

TEST(Launch, InconsistentVariablesAreRefused) {
  EXPECT_NE(error_of({{"RANK", "4"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}}), "");
  EXPECT_NE(error_of({{"RANK", "x"}, {"WORLD_SIZE", "4"}, {"MASTER_ADDR", "h"}}), "");
  const std::string error = error_of({{"RANK", "1"}, {"WORLD_SIZE", "4"}, {"MASTER_PORT", "0"}});
  EXPECT_NE(error.find("MASTER_PORT=0; expected a number from 1 to 65535"), std::string::npos)
      << error;
}

}  // namespace
}  // namespace hocket::comm
