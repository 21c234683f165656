// SPDX-License-Identifier: Apache-2.0
// ctest: slow
// Commands as rewards: the protocol, and commands that break it in every way.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdlib>
#include <thread>

#include "base/clock.h"
#include "base/file.h"
#include "base/json.h"
#include "base/stop.h"
#include "base/text.h"
#include "tests/log_util.h"
#include "tests/rl/reward_util.h"

namespace hocket::rl {
namespace {

using OrderedJson = nlohmann::ordered_json;

engine::RewardSection exec_section(const std::string& command, double timeout_s = 20,
                                   int64_t processes = 1) {
  engine::RewardSection section;
  section.type = "exec";
  section.command = command;
  section.timeout_s = timeout_s;
  section.processes = processes;
  return section;
}

/// A shell command that runs `body` for each line, which is in $line.
std::string for_each_line(const std::string& body) {
  return "while read -r line; do " + body + "; done";
}

std::unique_ptr<Reward> exec_reward(const std::string& command, double timeout_s = 20,
                                    int64_t processes = 1) {
  return make_reward(exec_section(command, timeout_s, processes), "judges");
}

double score_once(Reward* reward) { return score_under(reward, nullptr, "answer"); }
std::string error_once(Reward* reward) {
  return error_in([&] { score_once(reward); });
}

bool comes_true(const std::function<bool()>& condition) {
  for (const int64_t start = now_ns(); seconds_since(start) < 10;) {
    if (condition()) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  return false;
}

/// Returns whether a process is gone, or a zombie of another parent.
bool is_gone(pid_t pid) {
  if (kill(pid, 0) != 0) return true;
  const std::string path = fmt::format("/proc/{}/stat", pid);
  try {
    const std::string stat = read_file(path);
    return stat.substr(stat.rfind(')') + 2, 1) == "Z";
  } catch (const Error&) {
    return true;
  }
}

class RewardExec : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = ::testing::TempDir() + fmt::format("reward_exec_{}", getpid());
    make_dirs(folder_);
  }
  void TearDown() override { remove_tree(folder_); }
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  /// Returns the numbers that processes appended to a file, a line each.
  std::vector<pid_t> pids_in(const std::string& name) const {
    std::vector<pid_t> out;
    if (!file_exists(path(name))) return out;
    for (const std::string& line : split(read_file(path(name)), '\n')) {
      int64_t pid = 0;
      if (parse_int(line, &pid)) {
        out.push_back(static_cast<pid_t>(pid));
      }
    }
    return out;
  }

 private:
  std::string folder_;
};

TEST_F(RewardExec, SendsTheSampleWithItsColumns) {
  Prompt prompt = task_of({{"target", 8}}, OrderedJson::parse(R"({"prompt": [{"role": "user"}],
      "answer": "8", "data_source": "hidden", "request_id": "r", "level": 3})"));
  prompt.data_source = "numbers";
  prompt.extra_info = {{"split", "train"}};
  const Sample sample = answer_of("a\nb \"é\" \xff", {5, 6});
  const auto reward =
      exec_reward(for_each_line("printf '%s' \"$line\" >" + path("line") + "; echo 0.5"));
  EXPECT_EQ(part_under(reward.get(), prompt, sample).score, 0.5);
  EXPECT_EQ(read_file(path("line")),
            R"({"request_id":0,"data_source":"numbers","solution_str":"a\nb \"é\" )"
            "\xEF\xBF\xBD"
            R"(","ground_truth":{"target":8},"extra_info":{"split":"train"},)"
            R"("prompt":[{"role":"user"}],"completion_ids":[5,6],"answer":"8","level":3})");
  EXPECT_EQ(part_under(reward.get(), task_of(nullptr), sample).score, 0.5);
  const nlohmann::json second = read_json(path("line"));
  EXPECT_EQ(second.at("request_id"), 1);
  EXPECT_EQ(second.at("prompt"), "Q");
  EXPECT_TRUE(second.at("ground_truth").is_null());
  // The column that the prompt was read of, also where another one has the name.
  prompt.columns["question"] = "Why?";
  prompt.column = "question";
  EXPECT_EQ(part_under(reward.get(), prompt, sample).score, 0.5);
  EXPECT_EQ(read_json(path("line")).at("prompt"), "Why?");
}

TEST_F(RewardExec, ReadsNumbersAndObjects) {
  EXPECT_EQ(score_once(exec_reward(for_each_line("echo -1.5e-3")).get()), -1.5e-3);
  EXPECT_EQ(score_once(exec_reward(for_each_line("echo ' 2 '")).get()), 2);
  EXPECT_EQ(score_once(exec_reward(for_each_line("echo true")).get()), 1);
  EXPECT_EQ(score_once(exec_reward(for_each_line("echo '{\"score\": false}'")).get()), 0);
  const auto reward = exec_reward(for_each_line(
      R"(echo '{"score": 1, "style": 0.25, "ok": true, "note": "x", "list": [1], "request_id": 0}')"));
  const RewardPart part = part_under(reward.get(), task_of(nullptr), answer_of(""));
  EXPECT_EQ(part.score, 1);
  EXPECT_EQ(part.details, (std::map<std::string, double>{{"ok", 1}, {"style", 0.25}}));
  EXPECT_FALSE(part.failed);
}

TEST_F(RewardExec, ErrorsNameTheCommandsWrongAnswer) {
  struct Case {
    const char* body;
    const char* error;
  };
  const auto reward = exec_reward(for_each_line(". " + path("body")));
  for (const Case& one : std::vector<Case>{
           {"echo NaN", "answered 'NaN', which is no JSON"},
           {"echo inf", "which is no JSON"},
           {"echo good", "answered 'good', which is no JSON"},
           {"echo", "answered '', which is no JSON"},
           {"echo '\"1\"'", "answered '\"1\"'; expected a finite number"},
           {"echo null", "answered 'null'; expected a finite number"},
           {"echo '\"true\"'", "expected a finite number"},
           {"echo '[1]'", "expected a finite number"},
           {"echo '{}'", "expected a finite number"},
           {"echo '{\"score\": NaN}'", "which is no JSON"},
           {"echo '{\"score\": \"high\"}'", "expected a finite number"},
           {"echo '{\"score\": 1e999}'", "which is no JSON"},
           {"echo '{\"score\": 1, \"score\": 2}'", "which is no JSON"},
           {"echo '{\"score\": 1, \"request_id\": 77}'", "answered 77 to "},
           {"printf '1\\n2\\n'", "answered one sample with more than one line: '1\\n2\\n'"},
           {"exit 3", "ended with status 3"},
           {"printf 12; exit 0", "ended with status 0 within the line '12'"},
           {"kill -9 $$", "was ended by signal 9"},
           {"(kill -11 $(exec sh -c 'echo $PPID')); exit 139", "status 139 (signal 11)"},
           {"exec >&-; read -r more", "closed its standard output or input"},
           {"head -c 2000000 /dev/zero", "wrote more than 1 MiB without a line's end"},
           {"head -c 5000000 /dev/zero >&2; echo 1", "wrote more than 4 MiB to standard error"},
           {"echo a >&2; echo 'the cause' >&2; echo >&2; exit 1",
            "ended with status 1; the last line of its standard error: the cause"},
           {"printf 'no end' >&2; echo x", "no JSON; the last line of its standard error: no end"},
       }) {
    write_file_atomic(path("body"), one.body);
    for (int round = 0; round < 2; ++round) {  // it is started again, and does the same
      const std::string error = error_once(reward.get());
      EXPECT_TRUE(holds(error, "[judges] the command ") && holds(error, one.error))
          << one.body << "\n"
          << error;
    }
  }
}

TEST_F(RewardExec, StartsACommandAgain) {
  // Every second process is broken.
  const std::string command = "echo $$ >>" + path("pids") + "; n=$(wc -l <" + path("pids") + "); " +
                              for_each_line("[ $((n % 2)) = 0 ] && echo 0.25 || echo oops");
  const auto reward = exec_reward(command);
  EXPECT_TRUE(holds(error_once(reward.get()), "answered 'oops'"));
  EXPECT_EQ(score_once(reward.get()), 0.25);
  EXPECT_EQ(score_once(reward.get()), 0.25);
  const std::vector<pid_t> pids = pids_in("pids");
  ASSERT_EQ(pids.size(), 2U);
  EXPECT_TRUE(is_gone(pids[0]));
  EXPECT_FALSE(is_gone(pids[1]));
}

TEST_F(RewardExec, AnErrorThatIsAnAnswerKeepsTheProcess) {
  const auto reward =
      exec_reward("echo $$ >>" + path("pids") + "; " +
                  for_each_line(R"(echo '{"error": "ValueError: no number", "request_id": 0}')"));
  EXPECT_EQ(error_once(reward.get()), "[judges] the command failed: ValueError: no number");
  EXPECT_TRUE(holds(error_once(reward.get()), "answered 0 to 1"));  // out of step
  EXPECT_EQ(error_once(reward.get()), "[judges] the command answered 0 to 2");
  EXPECT_TRUE(comes_true([&] { return pids_in("pids").size() == 3; }));
}

TEST_F(RewardExec, LateLinesAreNoAnswers) {
  const auto reward = exec_reward(for_each_line("echo 1; while [ ! -e " + path("go") +
                                                " ]; do sleep 0.01; done; echo 2; "
                                                "touch " +
                                                path("gone")));
  EXPECT_EQ(score_once(reward.get()), 1);
  write_file_atomic(path("go"), "");
  ASSERT_TRUE(comes_true([&] { return file_exists(path("gone")); }));
  EXPECT_TRUE(holds(error_once(reward.get()), "wrote '2\\n' that nobody asked for"));
}

TEST_F(RewardExec, RunsPythonRewards) {
  write_file_atomic(path("score.py"),
                    "def compute_score(data_source, solution_str, ground_truth, extra_info):\n"
                    "    print('no part of the protocol')\n"
                    "    return {'score': int(solution_str) / ground_truth, 'acc': True}\n");
  const char* root = std::getenv("HOCKET_SOURCE_DIR");
  const auto reward = exec_reward(fmt::format("python3 {}/tools/reward_shim.py {}",
                                              root != nullptr ? root : ".", path("score.py")));
  const RewardPart part = part_under(reward.get(), task_of(4), answer_of("3"));
  EXPECT_EQ(part.score, 0.75);
  EXPECT_EQ(part.details, (std::map<std::string, double>{{"acc", 1}}));
  EXPECT_EQ(error_in([&] { score_under(reward.get(), 0, "3"); }),
            "[judges] the command failed: ZeroDivisionError: division by zero");
  EXPECT_TRUE(holds(error_in([&] { score_under(reward.get(), 4, "x"); }), "failed: ValueError"));
  EXPECT_EQ(score_under(reward.get(), 4, "4"), 1);
}

constexpr const char* kStarts = "echo '{\"ready\": false}'; ";
constexpr const char* kIsReady = "echo '{\"ready\": true}'; ";

TEST_F(RewardExec, SlowStartsCountForNoSample) {
  const std::string begin = "echo $$ >>" + path("pids") + "; ";
  for (const std::string& start :
       {kStarts + std::string("sleep 1; ") + kIsReady,                    // the reward waits for it
        "sleep 0.4; " + (kStarts + std::string("sleep 1; ") + kIsReady),  // the first sample does
        std::string(kIsReady)}) {
    remove_file(path("pids"));
    const auto reward = exec_reward(begin + start + for_each_line("echo 1"), 0.5);
    EXPECT_EQ(score_once(reward.get()), 1) << start;
    EXPECT_EQ(score_once(reward.get()), 1) << start;
    EXPECT_EQ(pids_in("pids").size(), 1U) << start;
  }
  // A process that is started again has time as well.
  remove_file(path("pids"));
  const auto reward = exec_reward(begin + kStarts + "sleep 1; " + kIsReady +
                                      for_each_line("[ -e " + path("go") + " ] && echo 1"),
                                  0.3);
  EXPECT_TRUE(holds(error_once(reward.get()), "gave no answer within 0.3 s"));
  write_file_atomic(path("go"), "");
  EXPECT_EQ(score_once(reward.get()), 1);
  EXPECT_EQ(pids_in("pids").size(), 2U);
}

TEST_F(RewardExec, FailedStartsAreRefused) {
  const auto refused = [](const std::string& command) {
    engine::RewardSection section = exec_section(command);
    section.start_timeout_s = 0.4;
    return error_in([&] { make_reward(section, "judges"); });
  };
  const std::string ends =
      refused(kStarts + std::string("sleep 0.3; echo a >&2; echo b >&2; exit 1"));
  EXPECT_TRUE(ends.starts_with("[judges] the command ") &&
              ends.ends_with(" did not start: it ended with status 1; the last lines of its "
                             "standard error: a | b"))
      << ends;
  const std::string hangs = refused(kStarts + std::string("exec sleep 600"));
  EXPECT_TRUE(holds(hangs, "did not start: it was not ready within start_timeout_s, 0.4 s"))
      << hangs;
}

TEST_F(RewardExec, PythonFilesThatDoNotLoadAreRefused) {
  const char* root = std::getenv("HOCKET_SOURCE_DIR");
  const auto refused = [&](const std::string& file, const std::string& source) {
    write_file_atomic(path("score.py"), source);
    return error_in([&] {
      exec_reward(fmt::format("python3 {}/tools/reward_shim.py {}", root != nullptr ? root : ".",
                              path(file)));
    });
  };
  const std::string missing = refused("none.py", "");
  EXPECT_TRUE(holds(missing,
                    "did not start: it ended with status 1; the last line of its standard "
                    "error: reward_shim: no file " +
                        path("none.py")))
      << missing;
  const std::string broken =
      refused("score.py", "import time\ntime.sleep(0.5)\nimport no_module\n");
  EXPECT_TRUE(holds(broken, "score.py\", line 3") && holds(broken, " | ModuleNotFoundError: No"))
      << broken;
  const std::string signature =
      refused("score.py", "def compute_score(solution_str, threshold): return 1\n");
  EXPECT_TRUE(holds(signature, "reward_shim: compute_score needs threshold")) << signature;
}

TEST_F(RewardExec, HangsEndInTime) {
  const auto hangs = exec_reward("echo $$ >>" + path("pids") + "; exec sleep 600", 0.2);
  int64_t start = now_ns();
  EXPECT_TRUE(holds(error_once(hangs.get()), "gave no answer within 0.2 s"));
  EXPECT_LT(seconds_since(start), 30);
  EXPECT_TRUE(is_gone(pids_in("pids")[0]));
  // One in a session of its own.
  const auto apart = exec_reward("echo $$ >" + path("apart") + "; exec setsid sleep 600", 0.2);
  EXPECT_TRUE(holds(error_once(apart.get()), "gave no answer within 0.2 s"));
  EXPECT_LT(seconds_since(start), 30);
  // One that reads nothing, though the sample does not fit into the pipe.
  start = now_ns();
  const std::string large(200'000, 'x');
  EXPECT_TRUE(holds(error_in([&] { score_under(hangs.get(), nullptr, large); }), "gave no answer"));
  EXPECT_LT(seconds_since(start), 30);
  // One that answers before it has read, and one that reads all.
  const auto hasty = exec_reward("echo 1; exec sleep 600");
  EXPECT_NE(error_in([&] { score_under(hasty.get(), nullptr, large); }), "");
  EXPECT_EQ(score_under(exec_reward(for_each_line("echo 1")).get(), nullptr, large), 1);
  // A flood of lines on both sides does not end by itself.
  start = now_ns();
  EXPECT_TRUE(holds(error_once(exec_reward("exec yes").get()), "that nobody asked for"));
  EXPECT_NE(error_once(exec_reward(for_each_line("yes 1")).get()), "");
  EXPECT_NE(error_once(exec_reward(for_each_line("yes >&2")).get()), "");
  EXPECT_LT(seconds_since(start), 60);
}

TEST_F(RewardExec, CommandsThatCannotStartAreRefused) {
  // On a busy machine it is the first sample that sees it.
  const std::string error = error_in([] { score_once(exec_reward("no_such_command").get()); });
  EXPECT_TRUE(holds(error, "ended with status 127")) << error;
  EXPECT_TRUE(holds(error, "not found"));
  EXPECT_TRUE(holds(error_in([] { exec_reward(" "); }), "exec needs command"));
}

TEST_F(RewardExec, IdleDeathsCostNoSample) {
  const auto reward = exec_reward("echo $$ >>" + path("pids") + "; " + for_each_line("echo 1"));
  EXPECT_EQ(score_once(reward.get()), 1);
  const test::LogLines logged;
  const pid_t first = pids_in("pids").at(0);
  kill(first, SIGKILL);
  ASSERT_TRUE(comes_true([&] { return is_gone(first); }));
  EXPECT_EQ(score_once(reward.get()), 1);
  EXPECT_TRUE(holds(logged.text(), "was ended by signal 9, without a sample; it is started again"));
  EXPECT_EQ(pids_in("pids").size(), 2U);
}

TEST_F(RewardExec, ProcessesRunAtATime) {
  // Each answers once all three have a sample.
  const auto reward =
      exec_reward(for_each_line("echo $$ >>" + path("pids") + "; while [ $(wc -l <" + path("pids") +
                                ") -lt 3 ]; do sleep 0.01; done; echo 1"),
                  20, 3);
  std::atomic<int> right{0};
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&] { right += score_once(reward.get()) == 1 ? 1 : 0; });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(right, 3);
}

TEST_F(RewardExec, AStopEndsWaiting) {
  const auto reward = exec_reward("exec sleep 600", 600);
  std::atomic<bool> stopping{false};
  int stopped = 0;
  std::mutex mutex;
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {  // one waits for an answer, one for the process
    threads.emplace_back([&] {
      const StopWhen stop([&] { return stopping.load(); });
      try {
        score_once(reward.get());
      } catch (const Stopped&) {
        const std::lock_guard lock(mutex);
        ++stopped;
      }
    });
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const int64_t start = now_ns();
  stopping = true;
  for (std::thread& thread : threads) {
    thread.join();
  }
  EXPECT_EQ(stopped, 2);
  EXPECT_LT(seconds_since(start), 30);
}

TEST_F(RewardExec, ChildrenEndWithTheReward) {
  // The first ends at the end of its input, the second never; both have children of their own.
  const std::string with_child = "sleep 600 & echo $! >>" + path("pids") + "; echo $$ >>" +
                                 path("pids") + "; echo ready >>" + path("ready") + "; ";
  for (const std::string& rest : {for_each_line("echo 1") + "; echo >" + path("ended"),
                                  std::string("trap '' TERM INT HUP; while :; do sleep 1; done")}) {
    remove_file(path("pids"));
    remove_file(path("ready"));
    remove_file(path("ended"));
    auto reward = exec_reward(with_child + rest);
    ASSERT_TRUE(comes_true([&] { return file_exists(path("ready")); }));
    reward.reset();
    EXPECT_EQ(file_exists(path("ended")), !holds(rest, "trap"));
    const std::vector<pid_t> pids = pids_in("pids");
    ASSERT_EQ(pids.size(), 2U);
    for (const pid_t pid : pids) {
      EXPECT_TRUE(comes_true([&] { return is_gone(pid); }));
    }
  }
}

TEST_F(RewardExec, ChildrenEndWithAKilledProcess) {
  const pid_t owner = fork();
  ASSERT_GE(owner, 0);
  if (owner == 0) {
    const auto reward =
        exec_reward("sleep 600 & echo $! >>" + path("pids") + "; echo $$ >>" + path("pids") +
                    "; echo >" + path("ready") + "; while :; do sleep 600; done");
    pause();
    _exit(1);
  }
  EXPECT_TRUE(comes_true([&] { return file_exists(path("ready")); }));
  kill(owner, SIGKILL);
  waitpid(owner, nullptr, 0);
  const std::vector<pid_t> pids = pids_in("pids");
  ASSERT_EQ(pids.size(), 2U);
  for (const pid_t pid : pids) {
    EXPECT_TRUE(comes_true([&] { return is_gone(pid); })) << pid;
  }
}

}  // namespace
}  // namespace hocket::rl
