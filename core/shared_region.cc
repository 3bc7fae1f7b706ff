#include "tutti/core/shared_region.h"

#include <fmt/format.h>

#include <utility>

#include "tutti/core/engine/engine.h"

namespace tutti {

SharedRegion::SharedRegion(std::weak_ptr<Engine> engine, std::unique_ptr<Region> region)
    : engine_(std::move(engine)),
      region_(std::move(region)),
      bytes_(static_cast<int64_t>(region_->bytes())) {}

SharedRegion::~SharedRegion() { free(); }

SharedRegion& SharedRegion::operator=(SharedRegion&& other) noexcept {
  if (this == &other) return *this;
  free();
  engine_ = std::move(other.engine_);
  region_ = std::move(other.region_);
  bytes_ = std::exchange(other.bytes_, 0);
  fork_guard_ = other.fork_guard_;
  return *this;
}

void SharedRegion::free() noexcept {
  if (!region_) return;
  if (fork_guard_.forked()) return keep_for_good(region_.release());
  if (const auto engine = engine_.lock())
    engine->retire(std::move(region_));
  else
    region_.reset();
}

TensorView SharedRegion::view(Shape shape, DataType dtype, int64_t offset) const {
  const int64_t element = size_of(dtype), count = shape.count();
  if (offset < 0 || offset > bytes_ || count > (bytes_ - offset) / element)
    throw Error(ErrorCode::invalid_argument,
                fmt::format("{}{} from byte {} on does not fit into a region of {} bytes",
                            to_string(dtype), shape.to_string(), offset, bytes_));
  return {data() + offset, std::move(shape), dtype};
}

}  // namespace tutti
