// SPDX-License-Identifier: Apache-2.0
// Readers of nccl-tests logs and Vidur's tables. Other tools write them, and people cut and paste
// them: rows that do not fit are dropped and reported.
#include "interop/comm_log_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cmath>
#include <map>
#include <optional>
#include <set>

#include "base/error.h"
#include "base/file.h"
#include "base/limits.h"
#include "base/text.h"

namespace hocket::interop {
namespace {

using cost::CommLog;
using cost::CommSample;

constexpr int64_t kMaxLogBytes = int64_t{256} << 20;
/// Bytes below which the two columns of a row differ by noise alone. Above, the out-of-place column
/// also moves memory.
constexpr double kNoisyBytes = 65536;

std::vector<std::string> words_of(std::string_view line) {
  std::vector<std::string> words;
  size_t at = 0;
  while (at < line.size()) {
    while (at < line.size() && std::isspace(static_cast<unsigned char>(line[at]))) {
      ++at;
    }
    size_t end = at;
    while (end < line.size() && !std::isspace(static_cast<unsigned char>(line[end]))) {
      ++end;
    }
    if (end > at) {
      words.emplace_back(line.substr(at, end - at));
    }
    at = end;
  }
  return words;
}

bool is_element_type(const std::string& word) {
  static const std::set<std::string> kTypes = {
      "int8",   "uint8",    "int32",  "uint32", "int64",    "uint64",   "half", "float",
      "double", "bfloat16", "f8e4m3", "f8e5m2", "fp8_e4m3", "fp8_e5m2", "char", "int"};
  return kTypes.count(word) > 0;
}

/// "[1,0]" or "[prterun-host-1@1,0]" at the end of a text: where it begins; npos if there is none.
size_t tag_at_end(std::string_view text) {
  if (!text.ends_with(']')) return text.npos;
  const size_t begin = text.rfind('[');
  if (begin == text.npos) return text.npos;
  std::string_view inside = text.substr(begin + 1, text.size() - begin - 2);
  inside.remove_prefix(std::min(inside.size(), inside.rfind('@') + 1));  // npos + 1 is 0
  const size_t comma = inside.find(',');
  int64_t number = 0;
  const bool is_tag = comma != inside.npos && parse_int(inside.substr(0, comma), &number) &&
                      parse_int(inside.substr(comma + 1), &number);
  return is_tag ? begin : text.npos;
}

bool has_time_of_day(std::string_view text) {
  const size_t colon = text.find(':');
  return colon != text.npos && text.find(':', colon + 1) != text.npos;
}

/// Returns a line without the tags of mpirun ("[1,0]<stdout>:"), in front and inside: a program
/// that writes a line in pieces gets a tag per piece.
std::string without_launcher(std::string_view line) {
  constexpr size_t kMaxBefore = 40;  // characters before a tag that may be the launcher's
  constexpr std::string_view kStreams[] = {"<stdout>:", "<stderr>:"};
  std::string text;
  for (bool is_first = true;; is_first = false) {
    size_t at = line.npos, size = 0;
    for (const std::string_view stream : kStreams) {
      if (line.find(stream) < at) {
        at = line.find(stream);
        size = stream.size();
      }
    }
    if (at == line.npos) return text.append(line);
    const std::string_view before = line.substr(0, at);
    const size_t tag = tag_at_end(before);
    const bool of_launcher = is_first && at < kMaxBefore &&
                             (tag == before.npos || has_time_of_day(before.substr(0, tag)));
    if (!of_launcher) {
      text.append(before.substr(0, tag));
    }
    line.remove_prefix(at + size);
  }
}

/// busbw over algbw of a row, and its greatest error by the rounding of both.
struct BusRatio {
  double ratio = 0, error = 0;
  bool given() const { return ratio > 0; }
};

/// One run of a program of nccl-tests, as its header says.
struct NcclRun {
  std::string op;
  std::map<int64_t, std::string> host_of;     // rank -> host
  std::map<std::string, int64_t> in_process;  // host and pid -> ranks
  int64_t gpus = 1;                           // -g times -t, where there are no pids
  std::map<std::string, int64_t> on_device;   // host, device and its bus number -> ranks
  size_t first_sample = 0;                    // of the log
  BusRatio bus;                               // of the row that gives it best

  int64_t ranks() const { return static_cast<int64_t>(host_of.size()); }
  bool lacks_ranks() const { return !host_of.empty() && host_of.rbegin()->first + 1 != ranks(); }
};

/// `#   Rank  0 Group  0 Pid  63365 on node-000000 device  0 [0x00] A100-SXM4-40GB`: adds the rank.
bool read_rank(const std::vector<std::string>& words, NcclRun* run, std::string* device) {
  const auto rank_at = std::find(words.begin(), words.end(), "Rank");
  const auto on = std::find(rank_at, words.end(), "on");
  const auto device_at = std::find(on, words.end(), "device");
  int64_t rank = 0;
  if (device_at == words.end() || words.end() - device_at < 3 || on + 1 == device_at ||
      !parse_int(*(rank_at + 1), &rank) || rank < 0 || rank >= kMaxRanks) {
    return false;
  }
  const std::string host = *(on + 1);
  const auto pid = std::find(rank_at, on, "Pid");
  if (run->host_of.emplace(rank, host).second && pid < on - 1) {
    ++run->in_process[host + " " + *(pid + 1)];
  }
  // Behind the bus number: the name, in words.
  auto name = device_at + 2;
  std::string bus;
  if (name != words.end() && name->front() == '[') {
    bus = *name;
    ++name;
  }
  ++run->on_device[host + " " + *(device_at + 1) + " " + bus];
  std::vector<std::string> parts(name, words.end());
  std::erase(parts, "NVIDIA");
  if (device->empty()) {
    *device = join(parts, " ");
  }
  return true;
}

/// A row of the table: size, count, type, maybe the reduction and the root, and for one or two
/// columns time, algbw, busbw, errors.
struct NcclRow {
  double bytes = 0, out_of_place_us = -1, in_place_us = -1;
  BusRatio bus = {};
  bool reduces = false;  ///< by an operation that it names
  bool rooted = false;   ///< at a rank that it names
  bool broken = false;   ///< a time is a number, and no time
  int64_t figures = 0;   ///< root included
};

/// Columns common to the rows of a table.
struct NcclTable {
  int64_t times = 0;  ///< columns by the head of the table, at least; 0: it has none
  bool root = false;
  int64_t figures = 0;  ///< of its first row; 0: none yet
  /// Names of the columns behind the type, where some are no figures of a time.
  std::vector<std::string> behind_type = {};
};

/// Columns of rccl-tests with -M: the choices of the library.
bool is_choice(const std::string& name) {
  return name == "algo" || name == "proto" || name == "nchannels";
}

/// `#  size  count  type  redop  root  time  algbw ...`.
NcclTable table_of(const std::vector<std::string>& words) {
  NcclTable table;
  table.times = std::count(words.begin(), words.end(), "time");
  table.root = std::count(words.begin(), words.end(), "root") > 0;
  if (std::any_of(words.begin(), words.end(), is_choice)) {
    const auto type = std::find(words.begin(), words.end(), "type");
    table.behind_type.assign(type == words.end() ? type : type + 1, words.end());
  }
  return table;
}

/// Returns a row's words without the columns of is_choice.
std::vector<std::string> without_choices(const std::vector<std::string>& words,
                                         const NcclTable& table) {
  const auto type = std::find_if(words.begin(), words.end(), is_element_type);
  const std::vector<std::string>& names = table.behind_type;
  if (names.empty() || type == words.end() || words.end() - type - 1 != std::ssize(names)) {
    return words;
  }
  std::vector<std::string> left(words.begin(), type + 1);
  for (size_t i = 0; i < names.size(); ++i) {
    if (!is_choice(names[i])) {
      left.push_back(*(type + 1 + static_cast<std::ptrdiff_t>(i)));
    }
  }
  return left;
}

/// Returns whether a row has the table's columns. In a row that was cut off, another word stands in
/// the place of a time.
bool belongs_to(const NcclRow& row, const NcclTable& table) {
  constexpr int64_t kOfATime = 4;
  if (table.figures > 0 && row.figures != table.figures) return false;
  const int64_t times = row.figures / kOfATime;
  const int64_t root = row.figures % kOfATime;
  return (times == 1 || times == 2) && root <= 1 && times >= table.times &&
         (!table.root || root == 1);
}

/// Returns the ratio of two printed bandwidths in GB/s. Not given if algbw is not bytes over time.
BusRatio bus_ratio(double bytes, double us, const std::string& algbw, const std::string& busbw) {
  double alg = 0, bus = 0;
  if (!parse_double(algbw, &alg) || !parse_double(busbw, &bus) || !(alg > 0) || !(bus > 0)) {
    return {};
  }
  const auto rounding = [](const std::string& text) {
    const size_t point = text.find('.');
    const size_t decimals = point == text.npos ? 0 : text.size() - point - 1;
    constexpr double kHalfAndALittle = 0.6;
    return kHalfAndALittle * std::pow(10, -static_cast<double>(decimals));
  };
  constexpr double kMaxOff = 0.02;
  const double off = std::abs(alg - bytes / us / 1e3);
  if (off > kMaxOff * alg + rounding(algbw)) return {};
  const double ratio = bus / alg;
  return {ratio, (rounding(busbw) + ratio * rounding(algbw)) / alg};
}

bool read_row(const std::vector<std::string>& words, NcclRow* row) {
  // Size and count come before the type, whatever a launcher puts in front (rank, time). Behind the
  // type come a word, for the reduction or its absence, and then figures.
  const auto type = std::find_if(words.begin(), words.end(), is_element_type);
  int64_t bytes = 0, count = 0;
  if (type == words.end() || type - words.begin() < 2 || !parse_int(*(type - 2), &bytes) ||
      !parse_int(*(type - 1), &count) || bytes <= 0) {
    return false;
  }
  row->bytes = static_cast<double>(bytes);
  auto figure = type + 1;
  double number = 0;
  if (figure != words.end() && !parse_double(*figure, &number)) {
    row->reduces = *figure != "none";
    ++figure;
  }
  row->figures = words.end() - figure;
  if (row->figures % 4 == 1) {
    int64_t root = 0;
    if (!parse_int(*figure, &root)) return false;
    row->rooted = root >= 0;
    ++figure;
  }
  const auto time = [&](std::ptrdiff_t at) {
    double us = 0;
    if (words.end() - figure <= at || !parse_double(*(figure + at), &us)) return -1.0;
    row->broken |= !(us > 0) || !std::isfinite(us);
    return us;
  };
  row->out_of_place_us = time(0);
  row->in_place_us = time(4);
  const std::ptrdiff_t column = row->out_of_place_us > 0 ? 0 : 4;
  if (words.end() - figure > column + 2) {
    row->bus = bus_ratio(row->bytes, time(column), *(figure + column + 1), *(figure + column + 2));
  }
  return !row->broken && (row->out_of_place_us > 0 || row->in_place_us > 0);
}

/// Returns whether words are the rest of a table's row: they begin with a size, or have a type.
bool was_row(const std::vector<std::string>& words) {
  int64_t size = 0;
  return !words.empty() && (parse_int(words.front(), &size) ||
                            (words.size() > 6 && std::find_if(words.begin(), words.end(),
                                                              is_element_type) != words.end()));
}

/// Time in place above 64 KiB, if there is one; the smaller time below.
double microseconds(const NcclRow& row) {
  if (row.in_place_us <= 0) return row.out_of_place_us;
  if (row.out_of_place_us <= 0 || row.bytes > kNoisyBytes) return row.in_place_us;
  return std::min(row.in_place_us, row.out_of_place_us);
}

/// Returns "15 hosts of 8, 2 of others (node-2 of 7, node- of 1)" if hosts have different numbers
/// of ranks. A misread host name makes it look so. Empty otherwise.
std::string uneven_hosts(const NcclRun& run) {
  std::map<std::string, int64_t> on;
  for (const auto& [rank, host] : run.host_of) {
    ++on[host];
  }
  std::map<int64_t, int64_t> hosts_of;  // by ranks
  for (const auto& [host, ranks] : on) {
    ++hosts_of[ranks];
  }
  if (hosts_of.size() < 2) return "";
  const int64_t usual = std::max_element(hosts_of.begin(), hosts_of.end(), [](auto& a, auto& b) {
                          return a.second < b.second;
                        })->first;
  constexpr size_t kNamed = 4;
  std::vector<std::string> others;
  for (const auto& [host, ranks] : on) {
    if (ranks != usual && others.size() < kNamed) {
      others.push_back(fmt::format("{} of {}", quote(host), ranks));
    }
  }
  return fmt::format("{} of {}, {} of others ({})", counted(hosts_of[usual], "host"), usual,
                     std::ssize(on) - hosts_of[usual], join(others, ", "));
}

/// Returns "16 ranks, 8 devices of 1 host" if ranks share devices, as two machines of one name make
/// it look. Empty otherwise.
std::string shared_devices(const NcclRun& run) {
  std::set<std::string> hosts;
  for (const auto& [rank, host] : run.host_of) {
    hosts.insert(host);
  }
  if (std::ssize(run.on_device) >= run.ranks()) return "";
  return fmt::format("{}, {} of {}", counted(run.ranks(), "rank"),
                     counted(std::ssize(run.on_device), "device"),
                     counted(std::ssize(hosts), "host"));
}

/// Returns the placement of ranks, from the lines of the log that name their hosts.
CommSample group_of(const NcclRun& run) {
  CommSample sample;
  sample.op = run.op;
  sample.ranks = static_cast<int32_t>(run.ranks());
  std::map<std::string, int32_t> on;
  for (const auto& [rank, host] : run.host_of) {
    ++on[host];
  }
  sample.nodes = static_cast<int32_t>(on.size());
  sample.per_node = sample.ranks;
  for (const auto& [host, count] : on) {
    sample.per_node = std::min(sample.per_node, count);
  }
  int64_t per_process = run.in_process.empty() ? run.gpus : 1;
  for (const auto& [process, count] : run.in_process) {
    per_process = std::max(per_process, count);
  }
  sample.per_process = static_cast<int32_t>(per_process);
  return sample;
}

/// Number of ranks by the bandwidths of a run, and a clause on the difference to its lines.
struct RanksByBandwidth {
  int64_t ranks = 0;  ///< 0: no number of ranks has such bandwidths
  std::string clause;
};

/// Returns busbw over algbw of an op on n ranks, by nccl-tests (doc/PERFORMANCE.md).
double bus_factor(const std::string& op, double n) {
  if (op == "all_reduce") return 2 * (n - 1) / n;
  return op == "send" || op == "broadcast" || op == "reduce" ? 1 : (n - 1) / n;
}

/// Returns the number of ranks by the bandwidths of a run, if it is not that of its lines. Nothing
/// where they agree, and where the figures cannot tell.
std::optional<RanksByBandwidth> other_ranks(const NcclRun& run) {
  if (!run.bus.given() || bus_factor(run.op, 2) == bus_factor(run.op, 3)) return std::nullopt;
  const auto [ratio, error] = run.bus;
  if (std::abs(ratio - bus_factor(run.op, static_cast<double>(run.ranks()))) <= error) {
    return std::nullopt;
  }
  const double most = run.op == "all_reduce" ? 2 : 1;
  const double n = ratio < most ? std::round(most / (most - ratio)) : 0;
  const bool tells = n >= 2 && n <= kMaxRanks && std::abs(bus_factor(run.op, n) - ratio) <= error;
  RanksByBandwidth found;
  found.ranks = tells ? static_cast<int64_t>(n) : 0;
  found.clause = fmt::format(
      "busbw over algbw is {:.3f}, as for {} on {}, and there are lines of {}", ratio, run.op,
      tells ? counted(found.ranks, "rank") : "no number of ranks", counted(run.ranks(), "rank"));
  return found;
}

int64_t after(const std::vector<std::string>& words, const char* name) {
  const auto at = std::find(words.begin(), words.end(), name);
  int64_t value = 1;
  return at != words.end() && at + 1 != words.end() && parse_int(*(at + 1), &value) ? value : 1;
}

/// A program of nccl-tests that a file is named after, as "hypercube_perf.log"; "" if it is not.
std::string program_of(std::string_view file) {
  const size_t end = file.find("_perf");
  return end == std::string_view::npos ? "" : std::string(file.substr(0, end)) + "_perf";
}

/// Returns the op of rows that nothing names: all-reduce, if the row looks like one.
std::string assumed_op(const NcclRow& row, CommLog* log) {
  if (row.rooted) {
    fail(log->path,
         "does not say which collective it is, and its rows have a root; expected --op {}",
         row.reduces ? "reduce" : "broadcast, gather or scatter");
  }
  if (!row.reduces) {
    fail(log->path,
         "does not say which collective it is, and its rows reduce nothing; expected --op "
         "all_gather, all_to_all or send");
  }
  log->assumed.push_back("no word on which collective it is: taken for all_reduce");
  return "all_reduce";
}

void read_nccl(const std::string& text, const std::string& given_op, CommLog* log) {
  // A file is a list of runs. A run begins with its own lines, or with lines of its ranks, and has
  // a table. A row counts if it has the columns of the table's other rows.
  NcclRun run;
  NcclTable table;
  run.op = comm_op_of(file_name(log->path));
  if (run.op.empty()) {
    run.op = given_op;
  }
  const std::string default_op = run.op;
  int64_t unreadable = 0, foreign = 0, lacking = 0;
  std::set<std::string> uneven, shared, contradicted, unlike_any;
  std::string named = run.op.empty() ? program_of(file_name(log->path)) : "";
  foreign += named.empty() ? 0 : 1;
  // Drops the samples of a run whose bandwidths are those of another number of ranks.
  const auto end_run = [&] {
    const std::optional<RanksByBandwidth> other = other_ranks(run);
    if (!other) return;
    (other->ranks > 0 ? contradicted : unlike_any).insert(other->clause);
    if (other->ranks > 0) {
      log->samples.resize(run.first_sample);
    }
  };
  const auto start_run = [&] {
    end_run();
    run = {};
    table = {};
    run.op = default_op;
    run.first_sample = log->samples.size();
  };
  for (const std::string& as_printed : split(text, '\n')) {
    const std::string line = without_launcher(as_printed);
    const std::vector<std::string> words = words_of(line);
    const bool comment = std::find(words.begin(), words.end(), "#") != words.end() ||
                         (!words.empty() && words[0].front() == '#');
    NcclRow row;
    if (comment && line.find("Collective test starting:") != std::string::npos) {
      start_run();
      named = words.back();
      run.op = comm_op_of(named);
      foreign += run.op.empty() ? 1 : 0;
    } else if (comment && line.find("nThread") != std::string::npos) {
      if (run.ranks() > 0) {
        start_run();
      }
      run.gpus = after(words, "nGpus") * after(words, "nThread");
    } else if (comment && line.find("Rank") != std::string::npos &&
               line.find("device") != std::string::npos) {
      unreadable += read_rank(words, &run, &log->device) ? 0 : 1;
    } else if (comment && std::find(words.begin(), words.end(), "time") != words.end()) {
      table = table_of(words);
    } else if (!comment && read_row(without_choices(words, table), &row) &&
               belongs_to(row, table)) {
      table.figures = row.figures;
      if (run.op.empty() && named.empty()) {
        run.op = assumed_op(row, log);
      }
      if (run.op.empty()) continue;
      CommSample sample = group_of(run);
      if (sample.ranks == 0) {
        fail(log->path,
             "has times but no \"Rank ... on HOST device ...\" lines, so the number of ranks "
             "is unknown; expected the log as nccl-tests prints it");
      }
      if (run.lacks_ranks()) {
        ++lacking;
        continue;
      }
      if (const std::string hosts = uneven_hosts(run); !hosts.empty()) {
        uneven.insert(hosts);
      }
      if (const std::string devices = shared_devices(run); !devices.empty()) {
        shared.insert(devices);
      }
      log->devices_per_node = std::max<int64_t>(log->devices_per_node, sample.ranks / sample.nodes);
      if (row.bus.given() && (!run.bus.given() || row.bus.error < run.bus.error)) {
        run.bus = row.bus;
      }
      sample.bytes = row.bytes;
      sample.seconds = microseconds(row) * 1e-6;
      log->samples.push_back(sample);
    } else if (!comment && was_row(words)) {
      ++unreadable;
    }
  }
  end_run();
  if (unreadable > 0) {
    log->dropped.push_back(fmt::format("{} that cannot be read", counted(unreadable, "line")));
  }
  for (const std::string& clause : contradicted) {
    log->dropped.push_back("runs that lack lines of their ranks, or have too many: " + clause);
  }
  for (const std::string& clause : unlike_any) {
    log->doubtful.push_back(clause + "; is it another collective? Taken as the log says");
  }
  if (lacking > 0) {
    log->dropped.push_back(
        fmt::format("{} of runs without a \"Rank ... on HOST device ...\" line of every rank",
                    counted(lacking, "row")));
  }
  for (const std::string& hosts : uneven) {
    log->doubtful.push_back(
        fmt::format("hosts with unequally many ranks: {}; taken as the log says", hosts));
  }
  for (const std::string& devices : shared) {
    log->doubtful.push_back(fmt::format(
        "ranks share devices: {}; several machines may have one name, and the number of nodes is "
        "then too small; taken as the log says",
        devices));
  }
  if (foreign > 0) {
    log->dropped.push_back(fmt::format("runs of {}, for which there is no op", named));
  }
}

/// Columns of Vidur's tables, `,time_stats.all_reduce.median,...,num_workers,size,...`; times are
/// milliseconds.
void read_vidur(const std::string& text, CommLog* log) {
  const std::vector<std::string> lines = split(text, '\n');
  const std::vector<std::string> head = split(trim(lines.front()), ',');
  const auto column = [&](std::string_view name, bool ends) {
    for (size_t i = 0; i < head.size(); ++i) {
      const bool same =
          ends ? head[i].starts_with("time_stats.") && head[i].ends_with(name) : head[i] == name;
      if (same) return i;
    }
    fail(log->path, "has no column {}; expected a table of Vidur's data/profiling/network", name);
  };
  const size_t time = column(".median", true), ranks = column("num_workers", false),
               size = column("size", false), op = column("collective", false),
               per_node = column("devices_per_node", false);
  std::map<std::string, int64_t> unknown;
  int64_t unreadable = 0;
  for (size_t i = 1; i < lines.size(); ++i) {
    const std::string_view line = trim(lines[i]);
    if (line.empty()) continue;
    const std::vector<std::string> cells = split(line, ',');
    int64_t n = 0, bytes = 0, m = 0;
    double ms = 0;
    if (cells.size() != head.size() || !parse_int(cells[ranks], &n) ||
        !parse_int(cells[size], &bytes) || !parse_int(cells[per_node], &m) ||
        !parse_double(cells[time], &ms) || n < 1 || n > kMaxRanks || m < 1 || bytes <= 0 ||
        !(ms > 0) || n % std::min(n, m) != 0) {
      ++unreadable;
      continue;
    }
    CommSample sample;
    sample.op = comm_op_of(cells[op]);
    if (sample.op.empty()) {
      ++unknown[cells[op]];
      continue;
    }
    sample.bytes = static_cast<double>(bytes);
    sample.ranks = static_cast<int32_t>(n);
    sample.per_node = static_cast<int32_t>(std::min(n, m));
    sample.nodes = sample.ranks / sample.per_node;
    sample.seconds = ms * 1e-3;
    log->devices_per_node = std::max<int64_t>(log->devices_per_node, sample.per_node);
    log->samples.push_back(sample);
  }
  if (unreadable > 0) {
    log->dropped.push_back(fmt::format("{} that cannot be read", counted(unreadable, "row")));
  }
  for (const auto& [name, count] : unknown) {
    log->dropped.push_back(
        fmt::format("{} of {}, for which there is no op", counted(count, "row"), quote(name)));
  }
}

}  // namespace

std::string comm_op_of(std::string_view name) {
  // Without "_perf" and underscores: nccl-tests has sendrecv_perf and alltoall_perf. Names that
  // hold others come first.
  std::string plain;
  for (const char c : name) {
    if (std::isalnum(static_cast<unsigned char>(c))) {
      plain += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    }
  }
  static const std::vector<std::pair<const char*, const char*>> kNames = {
      {"allreduce", "all_reduce"}, {"allgather", "all_gather"}, {"reducescatter", "reduce_scatter"},
      {"alltoall", "all_to_all"},  {"sendrecv", "send"},        {"broadcast", "broadcast"},
      {"reduce", "reduce"},        {"gather", "gather"},        {"scatter", "scatter"}};
  for (const auto& [theirs, ours] : kNames) {
    if (plain.find(theirs) != std::string::npos) return ours;
  }
  return "";
}

CommLog read_comm_log(const std::string& path, const std::string& op) {
  return parse_comm_log(read_file(path, kMaxLogBytes), path, op);
}

CommLog parse_comm_log(const std::string& text, const std::string& path, const std::string& op) {
  CommLog log;
  log.path = path;
  const std::string_view head = std::string_view(text).substr(0, text.find('\n'));
  if (head.find("time_stats.") != std::string_view::npos) {
    read_vidur(text, &log);
  } else {
    read_nccl(text, op, &log);
  }
  if (log.samples.empty()) {
    fail(path, "has no measurement{}; expected a log of nccl-tests or a table of Vidur's network",
         log.dropped.empty() ? std::string() : ": " + join(log.dropped, ", "));
  }
  return log;
}

}  // namespace hocket::interop
