// SPDX-License-Identifier: Apache-2.0
// Logs as nccl-tests and launchers write them, Vidur's tables, and both after editing: rows read,
// rows dropped, and refusals.
#include "interop/comm_log_reader.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "base/error.h"

namespace hocket::interop {
namespace {

using cost::CommLog;
using cost::CommSample;

std::string refusal(const std::string& text, const std::string& path = "some.log") {
  try {
    parse_comm_log(text, path);
  } catch (const Error& error) {
    EXPECT_EQ(error.exit_code(), 2);
    return error.what();
  }
  return "";
}

const char* kOldHead =
    "# nThread 1 nGpus 2 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5\n"
    "#\n# Using devices\n"
    "#   Rank  0 Pid  63389 on node-0 device  0 [0x00] A100-SXM4-40GB\n"
    "#   Rank  1 Pid  63389 on node-0 device  1 [0x00] A100-SXM4-40GB\n"
    "#       size         count      type   redop     time   algbw   busbw  error     time   "
    "algbw\n";

/// rccl-tests with -M prints columns for the algorithm, protocol and channels of the library,
/// before the times or after them.
TEST(CommLog, ReadsTheColumnsOfRcclTests) {
  const std::string ranks =
      "# nThread 1 nGpus 2 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5\n"
      "#   Rank  0 Pid  63389 on node-0 device  0 [0x00] MI300X\n"
      "#   Rank  1 Pid  63389 on node-0 device  1 [0x00] MI300X\n";
  const std::string figures = "59.46 17.63 17.63 0 60.17 17.43 17.43 0";
  const std::string times = "time algbw busbw #wrong time algbw busbw #wrong";
  for (const std::string& text :
       {ranks + "# size count type redop root algo proto nchannels " + times +
            "\n1048576 262144 float sum -1 RING SIMPLE 28 " + figures + "\n",
        ranks + "# size count type redop root " + times + " algo proto nchannels\n" +
            "1048576 262144 float sum -1 " + figures + " TREE LL128 28\n"}) {
    const CommLog log = parse_comm_log(text, "all_reduce_2.log");
    ASSERT_EQ(log.samples.size(), 1u) << text;
    EXPECT_DOUBLE_EQ(log.samples[0].seconds, 60.17e-6);
    EXPECT_EQ(log.dropped, std::vector<std::string>{});
  }
}

TEST(CommLog, ReadsOldNcclTestsOfOneProcess) {
  const CommLog log = parse_comm_log(
      std::string(kOldHead) +
          "     1024    256     float     sum     8.85    0.12    0.12  0e+00     8.59    0.12    "
          "0.12  0e+00\n"
          "  1048576 262144     float     sum    59.46   17.63   17.63  0e+00    60.17   17.43   "
          "17.43  0e+00\n"
          "# Out of bounds values : 0 OK\n",
      "all_reduce_2.log");
  EXPECT_EQ(log.assumed, std::vector<std::string>{});
  EXPECT_EQ(log.device, "A100-SXM4-40GB");
  EXPECT_EQ(log.devices_per_node, 2);
  EXPECT_EQ(log.dropped, std::vector<std::string>{});
  ASSERT_EQ(log.samples.size(), 2u);
  // Takes the in-place time for large sizes, and the smaller one where noise exceeds the
  // difference.
  EXPECT_DOUBLE_EQ(log.samples[0].seconds, 8.59e-6);
  EXPECT_DOUBLE_EQ(log.samples[1].seconds, 60.17e-6);
  const CommSample& sample = log.samples[1];
  EXPECT_EQ(sample.op, "all_reduce");
  EXPECT_EQ(sample.bytes, 1048576);
  EXPECT_EQ(sample.ranks, 2);
  EXPECT_EQ(sample.nodes, 1);
  EXPECT_EQ(sample.per_node, 2);
  EXPECT_EQ(sample.per_process, 2);
}

TEST(CommLog, ReadsNewNcclTestsUnderMpirunOnTwoNodes) {
  std::string text =
      "[1,0]<stdout>:# nccl-tests version 2.20.0\n"
      "[1,0]<stdout>:# Collective test starting: all_gather_perf\n"
      "[1,0]<stdout>:# nThread 1 nGpus 1 minBytes 1024\n";
  for (int rank = 0; rank < 4; ++rank) {
    text += "[1,0]<stdout>:#  Rank  " + std::to_string(rank) + " Group  0 Pid  " +
            std::to_string(100 + rank) + " on host" + std::to_string(rank / 2) +
            " device  0 [0000:04:00] NVIDIA H100 80GB HBM3\n";
  }
  text +=
      "[1,0]<stdout>:      1048576   65536   float    none      -1    50.0   20.97   15.7  0   "
      "40.0 "
      "  26.2   19.6      0\n"
      "[1,0]<stdout>:     17179869184   1073741824   bfloat16    none      -1    500.0   20.97   "
      "15.7  N/A   N/A   N/A   N/A      N/A\n"
      "noise float noise more noise and more noise\n";
  const CommLog log = parse_comm_log(text, "x.txt");
  EXPECT_EQ(log.device, "H100 80GB HBM3");
  ASSERT_EQ(log.samples.size(), 2u);
  EXPECT_EQ(log.samples[0].op, "all_gather");
  EXPECT_DOUBLE_EQ(log.samples[0].seconds, 40e-6);
  EXPECT_DOUBLE_EQ(log.samples[1].seconds, 500e-6);
  EXPECT_EQ(log.samples[0].ranks, 4);
  EXPECT_EQ(log.samples[0].nodes, 2);
  EXPECT_EQ(log.samples[0].per_node, 2);
  EXPECT_EQ(log.samples[0].per_process, 1);
  EXPECT_EQ(log.dropped, std::vector<std::string>{"1 line that cannot be read"});
}

/// 16 nodes of 8 ranks each, as mpirun prints them.
std::string of_128(const std::string& broken_host) {
  std::string text = "[1,0]<stdout>:# nThread 1 nGpus 1 minBytes 1024\n";
  for (int rank = 0; rank < 128; ++rank) {
    const std::string host = rank == 77 ? broken_host : fmt::format("node-{:06}C", rank / 8);
    text +=
        fmt::format("[1,0]<stdout>:#  Rank {:2} Group  0 Pid  {} on {} device  {} [0x00] A100\n",
                    rank, 100 + rank, host, rank % 8);
  }
  return text;
}
const char* const kRowOf128 =
    "[1,0]<stdout>:  1048576  262144  float  sum  -1  59.4  17.6  35.0  0  60.1  17.4  34.6  0\n";

/// mpirun tags every piece of a line, wherever it was cut.
TEST(CommLog, IgnoresTagsOfMpirunWithinALine) {
  for (const char* tag : {"[1,0]<stdout>:", "[1,12]<stderr>:", "[prterun-host-7@1,0]<stdout>:"}) {
    const CommLog log =
        parse_comm_log(of_128(fmt::format("node-{}000009C", tag)) + kRowOf128, "all_reduce.log");
    EXPECT_EQ(log.samples.at(0).ranks, 128) << tag;
    EXPECT_EQ(log.samples.at(0).nodes, 16) << tag;
    EXPECT_EQ(log.samples.at(0).per_node, 8) << tag;
    EXPECT_EQ(log.dropped, std::vector<std::string>{}) << tag;
    EXPECT_EQ(log.assumed, std::vector<std::string>{}) << tag;
  }
  // The tag may stand at any place of a row.
  const std::string row = "  1048576  262144  float  sum  59.46  1  1  0  60.17  1  1  0";
  for (size_t at = 0; at <= row.size(); ++at) {
    const std::string cut = row.substr(0, at) + "[1,0]<stdout>:" + row.substr(at) + "\n";
    const CommLog log = parse_comm_log(kOldHead + cut, "all_reduce.log");
    EXPECT_DOUBLE_EQ(log.samples.at(0).seconds, 60.17e-6) << at;
  }
  // The time of day that a launcher prints is not part of the row.
  const CommLog log = parse_comm_log(
      kOldHead + ("Mon Jan  1 00:00:00 2024[1,0]<stdout>:" + row + "\n"), "all_reduce.log");
  EXPECT_EQ(log.samples.size(), 1u);
}

/// A misread host name makes another node. The reader reports it, since nothing else can reveal it.
TEST(CommLog, ReportsHostsWithUnequallyManyRanks) {
  const CommLog log = parse_comm_log(of_128("node-") + kRowOf128, "all_reduce.log");
  EXPECT_EQ(log.samples.at(0).nodes, 17);
  ASSERT_EQ(log.doubtful.size(), 1u);
  EXPECT_EQ(log.doubtful[0],
            "hosts with unequally many ranks: 15 hosts of 8, 2 of others ('node-' of 1, "
            "'node-000009C' of 7); taken as the log says");
  // A rank without a line leaves the number of hosts unknown.
  std::string lacks = of_128("node-000009C");
  const size_t at = lacks.find("[1,0]<stdout>:#  Rank 77");
  lacks.erase(at, lacks.find('\n', at) + 1 - at);
  EXPECT_NE(refusal(lacks + kRowOf128).find("1 row of runs without a"), std::string::npos);
}

/// The bandwidths of nccl-tests tell the number of ranks: busbw / algbw is 2 (n - 1) / n.
TEST(CommLog, ReportsRanksUnlikeTheBandwidths) {
  std::string text = of_128("node-000009C");
  const std::string row =
      "  1048576  262144  float  sum  -1  59.40  17.65  35.03  0  60.10  17.45  34.63  0\n";
  EXPECT_EQ(parse_comm_log(text + row, "all_reduce.log").samples.size(), 1u);
  const std::string of_8 =
      "  1048576  262144  float  sum  -1  59.40  17.65  30.89  0  60.10  17.45  30.54  0\n";
  EXPECT_NE(refusal(text + of_8)
                .find("busbw over algbw is 1.750, as for all_reduce on 8 ranks, and "
                      "there are lines of 128 ranks"),
            std::string::npos)
      << refusal(text + of_8);
  // All-gather moves half of it, and nothing of another op fits.
  const CommLog log = parse_comm_log(
      text + "  1048576  262144  float  sum  -1  59.40  17.65  17.51  0  60.10  17.45  17.31  0\n",
      "all_reduce.log");
  EXPECT_EQ(log.samples.size(), 1u);
  ASSERT_EQ(log.doubtful.size(), 1u);
  EXPECT_NE(log.doubtful[0].find("on no number of ranks"), std::string::npos) << log.doubtful[0];
  // A run of several in a file is left out alone; others, and columns that are no bandwidths, stay.
  const CommLog both = parse_comm_log(text + row + kOldHead + of_8, "all_reduce.log");
  ASSERT_EQ(both.samples.size(), 1u);
  EXPECT_EQ(both.samples[0].ranks, 128);
  EXPECT_EQ(both.dropped.size(), 1u);
}

/// Two containers with one host name: the same device numbers occur twice.
TEST(CommLog, ReportsTwoMachinesOfOneName) {
  std::string text = kOldHead;
  for (int rank = 2; rank < 4; ++rank) {
    text += fmt::format("#   Rank  {} Pid  9 on node-0 device  {} [0x00] A100-SXM4-40GB\n", rank,
                        rank - 2);
  }
  const CommLog log =
      parse_comm_log(text + "  2048  512  float  sum  9  1  1  0  8  1  1  0\n", "all_reduce.log");
  EXPECT_EQ(log.samples.at(0).nodes, 1);
  ASSERT_EQ(log.doubtful.size(), 1u);
  EXPECT_TRUE(log.doubtful[0].starts_with("ranks share devices: 4 ranks, 2 devices of 1 host"))
      << log.doubtful[0];
}

TEST(CommLog, ReadsSeveralRunsInOneFile) {
  std::string text = kOldHead;
  text += "  2048  512  float  sum  9  1  1  0  8  1  1  0\n";
  std::string second = kOldHead;
  second += "#   Rank  2 Pid  7 on node-1 device  0 [0x00] A100-SXM4-40GB\n";
  second += "  4096  1024  float  sum  19  1  1  0  18  1  1  0\n";
  const CommLog log = parse_comm_log(text + second, "reduce_scatter.out");
  ASSERT_EQ(log.samples.size(), 2u);
  EXPECT_EQ(log.samples[0].op, "reduce_scatter");
  EXPECT_EQ(log.samples[0].ranks, 2);
  EXPECT_EQ(log.samples[1].ranks, 3);
  EXPECT_EQ(log.samples[1].nodes, 2);
  EXPECT_EQ(log.samples[1].per_node, 1);
}

TEST(CommLog, FindsTheOpByTheNameOfItsProgram) {
  EXPECT_EQ(comm_op_of("all_reduce_perf"), "all_reduce");
  EXPECT_EQ(comm_op_of("alltoall_perf.log"), "all_to_all");
  EXPECT_EQ(comm_op_of("sendrecv_perf"), "send");
  EXPECT_EQ(comm_op_of("send_recv"), "send");
  EXPECT_EQ(comm_op_of("broadcast_perf"), "broadcast");
  EXPECT_EQ(comm_op_of("reduce_perf.log"), "reduce");
  EXPECT_EQ(comm_op_of("gather_perf"), "gather");
  EXPECT_EQ(comm_op_of("scatter"), "scatter");
  EXPECT_EQ(comm_op_of("hypercube_perf"), "");
}

TEST(CommLog, OtherOpsAreNotReadAsAllReduce) {
  const std::string head = kOldHead;
  const std::string sum = head + "  2048  512  float  sum  9  1  1  0  8  1  1  0\n";
  EXPECT_EQ(parse_comm_log(sum, "2.log").samples.at(0).op, "all_reduce");
  // A program without a registered op, named by the log or only by the name of the file.
  const std::string foreign = "hypercube_perf, for which there is no op";
  EXPECT_NE(refusal("# Collective test starting: hypercube_perf\n" + sum).find(foreign),
            std::string::npos);
  EXPECT_NE(refusal(sum, "hypercube_perf.log").find(foreign), std::string::npos);
  EXPECT_EQ(parse_comm_log(sum, "hypercube_perf.log", "all_gather").samples.at(0).op, "all_gather");
  // The op in a file's name takes precedence over the op given for logs without one.
  EXPECT_EQ(parse_comm_log(sum, "all_gather_perf.log", "all_reduce").samples.at(0).op,
            "all_gather");
  // Rows with a root, or without a reduction, are not those of an all-reduce.
  EXPECT_NE(refusal(head + "  2048  512  float  none  0  9  1  1  0  8  1  1  0\n")
                .find("have a root; expected --op broadcast"),
            std::string::npos);
  EXPECT_NE(refusal(head + "  2048  512  float  sum  0  9  1  1  0  8  1  1  0\n")
                .find("have a root; expected --op reduce"),
            std::string::npos);
  EXPECT_NE(refusal(head + "  2048  512  float  9  1  1  0  8  1  1  0\n").find("reduce nothing"),
            std::string::npos);
  EXPECT_NE(refusal(head + "  2048  512  float  none  -1  9  1  1  0  8  1  1  0\n")
                .find("reduce nothing"),
            std::string::npos);
  const CommLog log = parse_comm_log(head + "  2048  512  float  none  0  9  1  1  0  8  1  1  0\n",
                                     "broadcast_perf.log");
  EXPECT_EQ(log.samples.at(0).op, "broadcast");
  EXPECT_DOUBLE_EQ(log.samples.at(0).seconds, 8e-6);
}

/// An incomplete last row gives no time, wherever the log is cut off.
TEST(CommLog, ReportsARowThatIsCutOff) {
  const std::string rows[] = {
      "   524288  131072  float  sum  57.78  9.07   9.07  2e-07  56.87  9.22   9.22  2e-07\n",
      "  1048576  262144  float  sum  72.53  14.46  14.46  2e-07  70.07  14.96  14.96  2e-07\n"};
  for (const std::string root : {"", "  -1"}) {
    std::string whole[2];
    for (size_t i = 0; i < 2; ++i) {
      whole[i] = rows[i];
      whole[i].insert(whole[i].find("sum") + 3, root);
    }
    const size_t last_figure = whole[1].rfind(' ') + 1;
    for (size_t left = 3; left + 1 < whole[1].size(); ++left) {
      const CommLog log = parse_comm_log(kOldHead + whole[0] + whole[1].substr(0, left), "x.log");
      const bool read = left > last_figure;  // its times are whole
      ASSERT_EQ(log.samples.size(), read ? 2u : 1u) << left;
      EXPECT_EQ(log.dropped.size(), read ? 0u : 1u) << left;
      EXPECT_DOUBLE_EQ(log.samples.back().seconds, read ? 70.07e-6 : 56.87e-6);
    }
  }
  // Without a row before it, the head of the table says how many figures there are.
  EXPECT_NE(refusal(kOldHead + rows[0].substr(0, rows[0].find("56.87"))).find("no measurement"),
            std::string::npos);
}

/// An impossible time makes the other time of its row doubtful, too. A word means that a time was
/// not taken.
TEST(CommLog, DropsARowWithAnImpossibleTime) {
  const std::string good = "  2048  512  float  sum  9  1  1  0  8  1  1  0\n";
  for (const char* in_place : {"-16.5", "0"}) {
    const std::string bad =
        fmt::format("  4096  1024  float  sum  9  1  1  0  {}  1  1  0\n", in_place);
    const CommLog log = parse_comm_log(kOldHead + good + bad, "x.log");
    EXPECT_EQ(log.samples.size(), 1u) << in_place;
    EXPECT_EQ(log.dropped, std::vector<std::string>{"1 line that cannot be read"}) << in_place;
  }
  const CommLog log = parse_comm_log(
      kOldHead + std::string("  2048  512  float  sum  9  1  1  0  N/A  1  1  N/A\n"), "x.log");
  EXPECT_DOUBLE_EQ(log.samples.at(0).seconds, 9e-6);
}

TEST(CommLog, RefusesOtherFiles) {
  EXPECT_NE(refusal("").find("has no measurement"), std::string::npos);
  EXPECT_NE(refusal("hello\nworld\n").find("has no measurement"), std::string::npos);
  EXPECT_NE(refusal(kOldHead).find("has no measurement"), std::string::npos);
  EXPECT_NE(refusal("  2048  512  float  sum  9  1  1  0  8  1  1  0\n")
                .find("the number of ranks is unknown"),
            std::string::npos);
  EXPECT_NE(refusal("a,time_stats.x.median,size\n1,2,3\n").find("no column num_workers"),
            std::string::npos);
}

TEST(CommLog, ReadsTablesOfVidur) {
  const CommLog log = parse_comm_log(
      ",time_stats.all_reduce.min,time_stats.all_reduce.median,rank,num_workers,size,collective,"
      "devices_per_node,max_devices_per_node\n"
      "0,0.03,0.04,0,4,2048,all_reduce,2,8\n"
      "1,0.03,-1,0,4,4096,all_reduce,2,8\n"
      "2,0.03,0.05,0,4,4096,hypercube,2,8\n"
      "3,0.03,0.06,0,2,4096,send_recv,1,8\n\n",
      "all_reduce.csv");
  ASSERT_EQ(log.samples.size(), 2u);
  EXPECT_DOUBLE_EQ(log.samples[0].seconds, 40e-6);
  EXPECT_EQ(log.samples[0].nodes, 2);
  EXPECT_EQ(log.samples[0].per_node, 2);
  EXPECT_EQ(log.samples[1].op, "send");
  EXPECT_EQ(log.samples[1].nodes, 2);
  EXPECT_EQ(log.dropped,
            (std::vector<std::string>{"1 row that cannot be read",
                                      "1 row of 'hypercube', for which there is no op"}));
}

}  // namespace
}  // namespace hocket::interop
