// As much JSON as the protocol needs; part of muxrl_client.hpp.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <iomanip>
#include <limits>
#include <locale>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace muxrl {

// A value as JSON has it. Reading it as what it is not raises std::bad_variant_access.
class Json {
public:
    using List = std::vector<Json>;
    using Map = std::map<std::string, Json>;

    Json(std::nullptr_t = nullptr) {}
    Json(std::string text) : value_(std::move(text)) {}
    Json(const char* text) : value_(std::string(text)) {}
    Json(Map map) : value_(std::move(map)) {}
    Json(List list) : value_(std::move(list)) {}
    template <class T, std::enable_if_t<std::is_arithmetic_v<T>, int> = 0>
    Json(T number) {
        if constexpr (std::is_same_v<T, bool>) {
            value_ = number;
        } else if constexpr (std::is_integral_v<T>) {
            value_ = static_cast<long long>(number);
        } else {
            value_ = static_cast<double>(number);
        }
    }
    template <class T>
    Json(const std::vector<T>& values) : value_(List(values.begin(), values.end())) {}
    template <class T>
    Json(const std::map<std::string, T>& values) : value_(Map(values.begin(), values.end())) {}

    bool is_null() const { return std::holds_alternative<std::nullptr_t>(value_); }
    bool is_map() const { return std::holds_alternative<Map>(value_); }
    bool boolean() const { return std::get<bool>(value_); }
    long long integer() const { return std::get<long long>(value_); }
    double number() const {
        const long long* whole = std::get_if<long long>(&value_);
        return whole ? static_cast<double>(*whole) : std::get<double>(value_);
    }
    std::vector<double> numbers() const {
        std::vector<double> all;
        for (const Json& one : list()) all.push_back(one.number());
        return all;
    }
    const std::string& text() const { return std::get<std::string>(value_); }
    const List& list() const { return std::get<List>(value_); }
    const Map& map() const { return std::get<Map>(value_); }
    // Returns what a map has under a key, null if nothing.
    const Json& operator[](const std::string& key) const {
        static const Json nothing;
        auto found = map().find(key);
        return found == map().end() ? nothing : found->second;
    }

    // Returns the text; NaN and infinities, which JSON has not, are null: the server refuses them.
    std::string write() const {
        std::ostringstream out;
        out.imbue(std::locale::classic());
        out << std::setprecision(std::numeric_limits<double>::max_digits10);
        write(out);
        return out.str();
    }

    // Raises std::invalid_argument if the text is not JSON.
    static Json read(const std::string& text) {
        Reader reader{text};
        Json value = reader.value();
        if (reader.next() != '\0') reader.fail();
        return value;
    }

private:
    void write(std::ostream& out) const {
        const char* separator = "";
        if (const auto* map = std::get_if<Map>(&value_)) {
            out << '{';
            for (const auto& [key, value] : *map) {
                out << std::exchange(separator, ",");
                write_text(key, out);
                out << ':';
                value.write(out);
            }
            out << '}';
        } else if (const auto* list = std::get_if<List>(&value_)) {
            out << '[';
            for (const Json& value : *list) {
                out << std::exchange(separator, ",");
                value.write(out);
            }
            out << ']';
        } else if (const auto* text = std::get_if<std::string>(&value_)) {
            write_text(*text, out);
        } else if (const auto* real = std::get_if<double>(&value_)) {
            std::isfinite(*real) ? out << *real : out << "null";
        } else if (const auto* whole = std::get_if<long long>(&value_)) {
            out << *whole;
        } else {
            out << (is_null() ? "null" : boolean() ? "true" : "false");
        }
    }

    static void write_text(const std::string& text, std::ostream& out) {
        static const char* const digits = "0123456789abcdef";
        out << '"';
        for (char c : text) {
            if (c == '"' || c == '\\') {
                out << '\\' << c;
            } else if (static_cast<unsigned char>(c) < ' ') {
                out << "\\u00" << digits[c >> 4] << digits[c & 15];
            } else {
                out << c;
            }
        }
        out << '"';
    }

    struct Reader {
        const std::string& text;
        std::size_t at = 0;

        [[noreturn]] void fail() const {
            throw std::invalid_argument("not JSON at byte " + std::to_string(at));
        }

        // Skips blanks; returns the character there, or NUL at the end.
        char next() {
            at = std::min(text.find_first_not_of(" \t\r\n", at), text.size());
            return at < text.size() ? text[at] : '\0';
        }

        void take(char expected) {
            if (next() != expected) fail();
            ++at;
        }

        // Whether another element follows the opening bracket, or the last element.
        bool has_more(char close, bool is_first) {
            if (next() == close) {
                ++at;
                return false;
            }
            if (!is_first) take(',');
            return true;
        }

        Json value() {
            char first = next();
            if (first == '{') {
                Map map;
                for (++at; has_more('}', map.empty());) {
                    std::string key = string();
                    take(':');
                    map[key] = value();
                }
                return map;
            }
            if (first == '[') {
                List list;
                for (++at; has_more(']', list.empty());) list.push_back(value());
                return list;
            }
            if (first == '"') return string();
            std::size_t end = std::min(text.find_first_of(",]} \t\r\n", at), text.size());
            std::string word = text.substr(at, end - at);
            if (word == "null" || word == "true" || word == "false") {
                at = end;
                return word == "null" ? Json() : Json(word == "true");
            }
            bool is_whole = word.size() < 19 && word.find_first_of(".eE") == std::string::npos;
            Json number = is_whole ? Json(parse<long long>(word)) : Json(parse<double>(word));
            at = end;
            return number;
        }

        template <class T>
        T parse(const std::string& word) const {
            std::istringstream in(word);
            in.imbue(std::locale::classic());
            T number;
            if (!(in >> number) || in.peek() != std::char_traits<char>::eof()) fail();
            return number;
        }

        std::string string() {
            take('"');
            std::string out;
            while (at < text.size() && text[at] != '"') {
                char c = text[at++];
                if (c != '\\' || at == text.size()) {
                    out += c;
                    continue;
                }
                static const char names[] = "bfnrt", meant[] = "\b\f\n\r\t";
                char escaped = text[at++];
                const char* known = std::strchr(names, escaped);
                if (escaped == 'u') {
                    append_utf8(unit(), out);
                } else {
                    out += known ? meant[known - names] : escaped;
                }
            }
            take('"');
            return out;
        }

        // Returns the code point of \uXXXX, or of a pair of them.
        unsigned long unit() {
            unsigned long point = hex();
            if (point >= 0xD800 && point < 0xDC00 && text.compare(at, 2, "\\u") == 0) {
                at += 2;
                point = 0x10000 + ((point - 0xD800) << 10) + (hex() - 0xDC00);
            }
            return point;
        }

        unsigned long hex() {
            if (at + 4 > text.size()) fail();
            at += 4;
            return std::strtoul(text.substr(at - 4, 4).c_str(), nullptr, 16);
        }

        static void append_utf8(unsigned long point, std::string& out) {
            int more = point < 0x80 ? 0 : point < 0x800 ? 1 : point < 0x10000 ? 2 : 3;
            static const unsigned char marks[] = {0, 0xC0, 0xE0, 0xF0};
            out += static_cast<char>(marks[more] | (point >> (6 * more)));
            while (more-- > 0) out += static_cast<char>(0x80 | ((point >> (6 * more)) & 0x3F));
        }
    };

    std::variant<std::nullptr_t, bool, long long, double, std::string, List, Map> value_;
};

}  // namespace muxrl
