/// @file Which Brume this is.
#pragma once

namespace brume::app {

/// Start of a hash of the sources, in hexadecimal digits; made with the build. Binaries for
/// different processors have it in common.
extern const char sources_id[];

}  // namespace brume::app
