#pragma once

#include <cstddef>

namespace tutti::explore {

/// A stack of its own on which a function runs until it switches to another fiber. All fibers of a
/// model share one thread of the operating system.
class Fiber {
 public:
  /// Stands for the calling thread's own stack until begin() is called.
  Fiber() = default;
  ~Fiber();
  Fiber(const Fiber&) = delete;
  Fiber& operator=(const Fiber&) = delete;

  /// The next switch to this fiber calls `entry`, which does not return. What ran here before is
  /// abandoned: no destructor of it runs.
  void begin(void (*entry)());
  /// Stops here and goes on with `to`. Returns once somebody switches back.
  void switch_to(Fiber& to);

 private:
  // The C++ library keeps these for each thread; here each fiber has its own.
  struct Exceptions {
    void* caught = nullptr;
    unsigned uncaught = 0;
  };

  std::byte* memory_ = nullptr;  // a guard page, then the stack
  void* stack_ = nullptr;        // where it goes on, while another fiber runs
  Exceptions exceptions_;
};

}  // namespace tutti::explore
