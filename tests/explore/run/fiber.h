#pragma once

#include <cstddef>

namespace tutti::explore {

/// A separate stack on which a function runs until it switches to another fiber. All fibers of a
/// model share one thread of the operating system.
class Fiber {
 public:
  /// Stands for the calling thread's own stack until begin() is called.
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// Makes the next switch to this fiber call `entry`, which does not return. The function that ran
  /// before is abandoned without its destructors.
  void begin(void (*entry)());
  /// Stops here and continues with `to`. Returns once a fiber switches back.
  void switch_to(Fiber& to);

 private:
  // The C++ library keeps these for each thread. Each fiber needs its own.
  struct Exceptions {
    void* caught = nullptr;
    unsigned uncaught = 0;
  };

  std::byte* memory_ = nullptr;  // a guard page, then the stack
  void* stack_ = nullptr;        // the stack pointer while another fiber runs
  Exceptions exceptions_;
};

}  // namespace tutti::explore
