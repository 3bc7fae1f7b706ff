#pragma once

namespace tutti {

/// Opens /dev/null as each of the three standard streams that this process was started without.
/// Otherwise the next file that is opened gets the number of a missing stream: a log line would go
/// into a socket, and a program started from here would read a secret as its input. Throws
/// Error(io).
void complete_standard_streams();

}  // namespace tutti
