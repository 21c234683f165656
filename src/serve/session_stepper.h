// SPDX-License-Identifier: Apache-2.0
// Steps of a model: the generating program of a run on its ranks.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "comm/communicator.h"
#include "engine/session.h"
#include "serve/stepper.h"

namespace hocket::serve {

/// Sizes of the generating program for these limits.
models::Generation generation_of(const StepLimits& limits);
/// The program that generates within these limits.
engine::ProgramSpec generation_spec(const engine::Run& run, const StepLimits& limits);

/// With ranks as processes, that with index 0 steps, and the others follow it.
class SessionStepper : public Stepper {
 public:
  /// Requires: the session is of generation_spec(limits), and its parameters are loaded.
  SessionStepper(engine::Session& session, StepLimits limits);
  /// Lets the other processes return from follow().
  ~SessionStepper() override;

  const StepLimits& limits() const override { return limits_; }
  StepOutput step(const StepInput& input) override;
  /// Sends a sign of life to the other processes. To be called from time to time while nothing is
  /// to be done.
  void stay_alive();
  /// Returns the texts of all processes by index: `mine`, and those of the others' follow(). To be
  /// called between steps by process 0.
  std::vector<std::string> ask(const std::string& mine);
  /// Takes part in the steps of process 0 until that ends. `answer` gives this process's text for
  /// ask(). Throws Error if a step fails.
  void follow(const std::function<std::string()>& answer = {});

 private:
  StepOutput run(const StepInput& input);
  void broadcast(const std::string& message);

  engine::Session& session_;
  const StepLimits limits_;
  const int64_t divisor_;  ///< of the tokens of a step
  bool failed_ = false;
};

}  // namespace hocket::serve
