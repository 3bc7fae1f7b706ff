#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tutti/adapters/distributed.h"

namespace tutti::test {

/// A trainer whose every number is known. The loss of rank r is |w - target_r|^2 / 2 in each
/// element, and the optimizer is gradient descent with an optional momentum. Rates and targets are
/// short binary fractions, so that the first steps are exact.
class ExchangeTrainer {
 public:
  struct Param {
    std::string name;
    Tensor value, gradient;
  };
  struct State {
    std::string name;
    Tensor tensor;
  };

  explicit ExchangeTrainer(int rank, float momentum = 0) : rank_(rank), momentum_(momentum) {
    int64_t length = 2;
    for (const char* name : {"first", "second", "third", "fourth"}) {
      const Shape shape{length};
      list_.push_back({name, Tensor(shape, DataType::f32), Tensor(shape, DataType::f32)});
      states_.push_back({std::string("velocity.") + name, Tensor(shape, DataType::f32)});
      for (int64_t i = 0; i < length; ++i) list_.back().value.as<float>()[i] = 1;
      length += 3;
    }
  }

  std::vector<Param>& parameters() { return list_; }
  std::vector<State>& state() { return states_; }
  double learning_rate() const { return rate_; }
  void set_learning_rate(double rate) { rate_ = rate; }
  static float target(int rank, size_t element) {
    return static_cast<float>((rank * 5 + static_cast<int>(element) * 3) % 8);
  }

  void set_gradients() {
    size_t element = 0;
    for (auto& param : list_)
      for (int64_t i = 0; i < param.value.count(); ++i)
        param.gradient.as<float>()[i] = param.value.as<float>()[i] - target(rank_, element++);
  }
  void step() {
    for (size_t p = 0; p < list_.size(); ++p)
      for (int64_t i = 0; i < list_[p].value.count(); ++i) {
        float& velocity = states_[p].tensor.as<float>()[i];
        velocity = momentum_ * velocity + list_[p].gradient.as<float>()[i];
        list_[p].value.as<float>()[i] -= static_cast<float>(rate_) * velocity;
      }
  }

  std::vector<float> values() const {
    std::vector<float> all;
    for (const auto& param : list_) {
      const auto span = param.value.span<float>();
      all.insert(all.end(), span.begin(), span.end());
    }
    return all;
  }

 private:
  int rank_;
  float momentum_;
  double rate_ = 0.5;
  std::vector<Param> list_;
  std::vector<State> states_;
};

struct ExchangeRun {
  ExchangePolicy policy = {};
  int steps = 6;
  float momentum = 0;
  /// The learning rate of each step; 1/2 if empty.
  std::function<double(int step)> rate = nullptr;
};

/// Returns this rank's parameters after such a run.
inline std::vector<float> run_exchange(Communicator& comm, const ExchangeRun& run) {
  ExchangeTrainer trainer(comm.rank(), run.momentum);
  auto optimizer = distributed(comm, trainer, {.exchange = run.policy});
  for (int step = 0; step < run.steps; ++step) {
    if (run.rate) trainer.set_learning_rate(run.rate(step));
    trainer.set_gradients();
    optimizer.step();
  }
  return trainer.values();
}

}  // namespace tutti::test
