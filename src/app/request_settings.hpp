/// @file Settings of answers that a request has in its body.
#pragma once

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <string_view>

#include "verbs.hpp"

namespace brume::app {

/// Whether a key of a request's body is a setting of answers.
bool is_setting(std::string_view name);

/// Takes settings from a body of a request as servers know it. Names of others are added to
/// `unknown`.
/// @param where  the request, for errors
void take_settings(const nlohmann::ordered_json& body, const std::string& where,
                   AnswerSettings& settings, std::set<std::string>& unknown);

}  // namespace brume::app
