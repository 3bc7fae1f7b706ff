#pragma once

#include <memory>
#include <utility>

#include "tutti/backends/backend.h"

namespace tutti::test {

/// Forwards everything to another backend. A test derives from it to change one thing.
class ForwardingBackend : public Backend {
 public:
  explicit ForwardingBackend(std::unique_ptr<Backend> rest) : rest_(std::move(rest)) {}
  bool progress() override { return rest_->progress(); }
  bool arm() override { return rest_->arm(); }
  int descriptor() const override { return rest_->descriptor(); }
  void abort(const Error& error) noexcept override { rest_->abort(error); }
  Capabilities capabilities() const override { return rest_->capabilities(); }
  std::unique_ptr<Region> allocate(size_t bytes, Device device) override {
    return rest_->allocate(bytes, device);
  }
  OperationPtr start(const Collective& collective, const Launch& launch) override {
    return rest_->start(collective, launch);
  }
  std::string_view algorithm(const Collective& collective) const override {
    return rest_->algorithm(collective);
  }
  Transport* transport() override { return rest_->transport(); }

 protected:
  Backend& rest() const { return *rest_; }

 private:
  const std::unique_ptr<Backend> rest_;
};

}  // namespace tutti::test
