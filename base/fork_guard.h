#pragma once

namespace tutti {

/// Tells a process that it is a fork of the one that made the guard, at the cost of one load: the
/// kernel gives children a blank page in its place.
class ForkGuard {
 public:
  ForkGuard();
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;
  bool forked() const { return mark_ != nullptr ? *mark_ == 0 : has_other_number(); }

 private:
  bool has_other_number() const;

  volatile int* mark_;  // a page of its own; null where the kernel cannot do it
  int process_;
};

}  // namespace tutti
