#pragma once

#include <ATen/core/ivalue.h>

#include <chrono>
#include <exception>
#include <functional>
#include <memory>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "tutti/core/work.h"

namespace tutti::torch {

/// A call of c10d that is under way.
struct CallUnderWay {
  std::vector<Work> works;            // that carry it; none: it is done
  std::vector<::at::Tensor> outputs;  // of result() and the Future
  std::vector<::at::Tensor> inputs;   // kept until it is over
  /// What is left to be done then: copies into the caller's tensors, looks at what came. Runs once,
  /// in a thread that waits or in the communicator's thread for callbacks, unless a Work failed.
  std::function<void()> finish;
};

/// What c10d's callers get. Any thread. It may be dropped: the call goes on, and its tensors are
/// kept until it is over. wait() throws what the call's Works throw, and Error(timeout) once the
/// given time is over, or else the group's; the call goes on then. The Future ends by itself, in
/// the communicator's thread for callbacks; what hangs on it there may start calls but not wait for
/// them.
class GroupWork final : public ::c10d::Work {
 public:
  GroupWork(int rank, ::c10d::OpType type, CallUnderWay call, std::chrono::milliseconds timeout);

  bool isCompleted() override;
  bool isSuccess() const override;
  std::exception_ptr exception() const override;
  std::vector<::at::Tensor> result() override;
  void synchronize() override { wait(); }
  bool wait(std::chrono::milliseconds timeout = std::chrono::milliseconds(0)) override;
  ::c10::intrusive_ptr<::c10::ivalue::Future> getFuture() override;

 private:
  class State;
  const std::shared_ptr<State> state_;
};

}  // namespace tutti::torch
