#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>

#include "tutti/backends/gloo/mesh.h"
#include "tutti/collectives/collective.h"

namespace tutti {

enum class GlooAllreduce { ring, halving_doubling };
/// Up to so many bytes halving_doubling is prepared once for all calls, and runs in memory of its
/// own. Prepared for one call it takes longer than the copies: a message that comes before the
/// receiver is prepared keeps Gloo's thread spinning, on a core that others need.
inline constexpr int64_t kMostKept = 4 << 20;

/// Calls Gloo for collectives, one after another in one order on all ranks; blocks until each is
/// over. What reduces is not scaled yet, and stands in the output. Throws what Gloo throws.
class GlooCaller {
 public:
  explicit GlooCaller(std::shared_ptr<GlooMesh> mesh);
  ~GlooCaller();
  /// `number` tells calls apart that follow each other; equal on all ranks that take part.
  void call(const Collective& collective, uint32_t number, GlooAllreduce algorithm);

 private:
  class Implementation;
  const std::unique_ptr<Implementation> implementation_;
};

}  // namespace tutti
