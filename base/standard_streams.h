#pragma once

namespace tutti {

/// Opens /dev/null as each of the three standard streams that this process was started without.
/// Otherwise the next opened file would get the number of a missing stream. A log line could then
/// go into a socket, and a started program could read a secret as its input. Throws Error(io).
void complete_standard_streams();

}  // namespace tutti
