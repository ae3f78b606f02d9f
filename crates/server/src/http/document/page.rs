//! The document as one HTML page: no scripts, no external resources, both languages, and every text escaped.

use super::fields::{Field, fields};
use super::values::{description, text};
use serde_json::Value;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");

/// The language that is shown first; the page can switch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Language {
    English,
    Chinese,
}

pub(super) fn render(document: &Value, language: Language) -> String {
    let mut page = HtmlPage { document, html: String::with_capacity(512 * 1024) };
    page.head(language);
    page.navigation();
    page.html.push_str("<main>");
    page.hero();
    for tag in list(&document["tags"]) {
        page.family(tag);
    }
    page.codes();
    page.html.push_str("</main></div></div></body></html>\n");
    page.html
}

struct HtmlPage<'d> {
    document: &'d Value,
    html: String,
}

/// An API: its path, and its operations by their methods.
struct ApiSection<'d> {
    path: &'d str,
    operations: Vec<(&'d str, &'d Value)>,
}

impl<'d> HtmlPage<'d> {
    fn put(&mut self, html: &str) {
        self.html.push_str(html);
    }

    /// A text in both languages; the page shows one.
    fn both(&mut self, english: &str, chinese: &str) {
        let (english, chinese) = (escape(english), escape(chinese));
        let _ = write!(
            self.html,
            "<span class=\"en\">{english}</span><span class=\"zh\" lang=\"zh\">{chinese}</span>"
        );
    }

    fn described(&mut self, described: &Value) {
        let (english, chinese) = description(described);
        self.both(english, chinese);
    }

    fn head(&mut self, language: Language) {
        let (lang, en, zh) = match language {
            Language::English => ("en", " checked", ""),
            Language::Chinese => ("zh", "", " checked"),
        };
        let _ = write!(
            self.html,
            "<!doctype html>\n<html lang=\"{lang}\"><head><meta charset=\"utf-8\">\
             <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\
             <title>procfleet API</title><style>{STYLE}</style></head><body>\
             <input class=\"switch\" type=\"radio\" name=\"language\" id=\"en\" aria-label=\"English\"{en}>\
             <input class=\"switch\" type=\"radio\" name=\"language\" id=\"zh\" aria-label=\"中文\"{zh}>\
             <input class=\"switch\" type=\"checkbox\" id=\"theme\" aria-label=\"light or dark, 明暗\">\
             <input class=\"switch\" type=\"checkbox\" id=\"contents\" aria-label=\"contents, 目录\">\
             <div class=\"page\"><header class=\"bar\"><a class=\"brand\" href=\"#top\">proc<b>fleet</b> API</a>\
             <div class=\"tools\"><a href=\"/api/openapi.json\">openapi.json</a><label for=\"en\">English</label>\
             <label for=\"zh\" lang=\"zh\">中文</label><label for=\"theme\" title=\"light / dark\">◐</label></div></header>\
             <div class=\"frame\" id=\"top\">"
        );
    }

    fn hero(&mut self) {
        let info = &self.document["info"];
        self.put("<div class=\"hero\"><h1>");
        self.both("Processes on a fleet of hosts, by one call", "一次调用，管理大量主机上的进程");
        let version = escape(text(&info["version"]));
        let _ = write!(self.html, "</h1><span class=\"version\">procfleet {version} · OpenAPI 3.1</span>");
        let (english, chinese) = description(info);
        for (english, chinese) in english.split("\n\n").zip(chinese.split("\n\n")) {
            self.put("<p>");
            self.both(english, chinese);
            self.put("</p>");
        }
        self.put("</div>");
    }

    fn navigation(&mut self) {
        self.put("<nav><label for=\"contents\">☰ ");
        self.both("Contents", "目录");
        self.put("</label><div>");
        for tag in list(&self.document["tags"]) {
            self.put("<h2>");
            self.both(text(&tag["x-displayName"]), text(&tag["x-displayName-zh"]));
            self.put("</h2>");
            for api in self.apis(text(&tag["name"])) {
                for (_, operation) in distinct(&api.operations) {
                    let id = escape(text(&operation["operationId"]));
                    let _ = write!(self.html, "<a href=\"#{id}\">{id}</a>");
                }
            }
        }
        self.put("<h2><a href=\"#codes\">");
        self.both("Codes", "错误码");
        self.put("</a></h2></div></nav>");
    }

    fn apis(&self, family: &str) -> Vec<ApiSection<'d>> {
        let paths = self.document["paths"].as_object().into_iter().flatten();
        let apis = paths.map(|(path, item)| ApiSection {
            path,
            operations: item
                .as_object()
                .into_iter()
                .flatten()
                .filter(|(_, operation)| operation["tags"][0] == family)
                .map(|(method, operation)| (method.as_str(), operation))
                .collect(),
        });
        apis.filter(|api| !api.operations.is_empty()).collect()
    }

    fn family(&mut self, tag: &Value) {
        self.put("<section><h2>");
        self.both(text(&tag["x-displayName"]), text(&tag["x-displayName-zh"]));
        self.put("</h2><p>");
        self.described(tag);
        self.put("</p>");
        for api in self.apis(text(&tag["name"])) {
            for (method, operation) in distinct(&api.operations) {
                self.operation(&api, method, operation);
            }
        }
        self.put("</section>");
    }

    fn operation(&mut self, api: &ApiSection<'_>, method: &str, operation: &Value) {
        let id = escape(text(&operation["operationId"]));
        let _ = write!(self.html, "<article id=\"{id}\"><h3><a href=\"#{id}\">");
        self.both(text(&operation["summary"]), text(&operation["x-summary-zh"]));
        let _ = write!(self.html, "</a><span class=\"name\">{id}</span></h3>");
        let both = operation["x-post-or-get"] == true;
        let methods = api.operations.iter().filter(|(other, _)| both || *other == method);
        self.put("<div class=\"route\">");
        for (method, _) in methods {
            let _ = write!(self.html, "<span class=\"method {method}\">{}</span>", method.to_uppercase());
        }
        let _ = write!(self.html, "<span class=\"path\">{}</span></div><p>", escape(api.path));
        self.described(operation);
        self.put("</p>");
        self.examples(operation);
        self.parameters(operation);
        self.request(operation);
        self.answer(operation);
        self.aliases(operation);
        self.put("</article>");
    }

    fn examples(&mut self, operation: &Value) {
        let request = &operation["requestBody"]["content"]["application/json"]["example"];
        let answer = &operation["responses"]["200"]["content"]["application/json"]["example"];
        if request.is_null() && answer.is_null() {
            return;
        }
        self.put("<div class=\"examples\">");
        for (example, english, chinese) in [(request, "Request", "请求示例"), (answer, "Answer", "返回示例")]
        {
            if !example.is_null() {
                self.put("<div><h4>");
                self.both(english, chinese);
                self.put("</h4><pre>");
                highlight(example, 0, &mut self.html);
                self.put("</pre></div>");
            }
        }
        self.put("</div>");
    }

    fn parameters(&mut self, operation: &Value) {
        let named: Vec<&Value> = list(&operation["parameters"])
            .iter()
            .map(|parameter| match parameter["$ref"].as_str() {
                Some(pointer) => self.document.pointer(pointer.trim_start_matches('#')).unwrap_or(parameter),
                None => parameter,
            })
            .collect();
        let mut rows = Vec::new();
        for parameter in named {
            let schema = match &parameter["schema"] {
                Value::Null => &parameter["content"]["application/json"]["schema"],
                schema => schema,
            };
            let mut row = Field::new(text(&parameter["name"]), schema, parameter["required"] == true);
            (row.english, row.chinese) = description(parameter);
            row.location = text(&parameter["in"]);
            rows.push(row);
        }
        self.fields("Path, query and headers", "路径、查询参数与请求头", &rows, true);
    }

    fn request(&mut self, operation: &Value) {
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        if !schema.is_null() {
            self.fields("Request", "请求字段", &fields(self.document, schema, ""), true);
        }
    }

    fn answer(&mut self, operation: &Value) {
        let schema = &operation["responses"]["200"]["content"]["application/json"]["schema"];
        let all = fields(self.document, schema, "");
        // The envelope is the same for all APIs.
        let inner: Vec<Field<'_>> = all.into_iter().filter(|field| field.path.starts_with("data")).collect();
        self.fields("Answer", "返回字段", &inner, false);
    }

    fn fields(&mut self, english: &str, chinese: &str, rows: &[Field<'_>], open: bool) {
        if rows.is_empty() {
            return;
        }
        self.put(if open { "<details open><summary>" } else { "<details><summary>" });
        self.both(english, chinese);
        let _ = write!(self.html, " <small>{}</small></summary><div class=\"fields\">", rows.len());
        for row in rows {
            self.field(row);
        }
        self.put("</div></details>");
    }

    fn field(&mut self, field: &Field<'_>) {
        let (parent, name) =
            field.path.rsplit_once('.').map_or(("", field.path.as_str()), |(parent, name)| (parent, name));
        let parent =
            if parent.is_empty() { String::new() } else { format!("<i>{}.</i><wbr>", escape(parent)) };
        let _ = write!(
            self.html,
            "<div class=\"field\"><div class=\"what\"><code>{parent}{}</code><div class=\"kind\">",
            escape(name)
        );
        if !field.location.is_empty() {
            let _ = write!(self.html, "{} · ", escape(field.location));
        }
        let _ = write!(self.html, "{}", escape(&field.kind));
        if !field.bounds.is_empty() {
            let _ = write!(self.html, " · {}", escape(&field.bounds));
        }
        if field.required {
            self.put(" <span class=\"must\">");
            self.both("required", "必填");
            self.put("</span>");
        } else if !field.required_for.is_empty() {
            self.put(" <span class=\"must\">");
            self.both(
                &format!("required for {}", field.required_for),
                &format!("{} 时必填", field.required_for),
            );
            self.put("</span>");
        }
        self.put("</div></div><div class=\"says\">");
        self.both(field.english, field.chinese);
        self.put("</div></div>");
    }

    fn aliases(&mut self, operation: &Value) {
        let aliases = list(&operation["x-aliases"]);
        if aliases.is_empty() {
            return;
        }
        self.put("<details><summary>");
        self.both("Also under", "其他路径");
        let _ = write!(self.html, " <small>{}</small></summary><ul class=\"aliases\">", aliases.len());
        for alias in aliases {
            let _ = write!(self.html, "<li class=\"path\">{}</li>", escape(text(alias)));
        }
        self.put("</ul></details>");
    }

    fn codes(&mut self) {
        self.put("<section id=\"codes\"><h2>");
        self.both("Codes", "错误码");
        self.put("</h2><p>");
        self.both(
            "code stands at the top of an answer, error_code in the result of one operation.",
            "code 为返回顶层的返回码，error_code 为单个操作的结果码。",
        );
        self.put("</p><article><table><tr><th>code</th><th>error_code</th><th></th></tr>");
        for row in list(&self.document["x-codes"]) {
            let (code, inner) = (&row["code"], &row["error_code"]);
            let inner =
                if code == inner && *code != 0 { String::new() } else { format!("<code>{inner}</code>") };
            let _ = write!(self.html, "<tr><td><code>{code}</code></td><td>{inner}</td><td>");
            self.described(row);
            self.put("</td></tr>");
        }
        self.put("</table></article></section>");
    }
}

/// An API that is served by POST and by GET is shown once.
fn distinct<'a, 'd>(
    operations: &'a [(&'d str, &'d Value)],
) -> impl Iterator<Item = (&'d str, &'d Value)> + 'a {
    let shown = |(index, (_, operation)): &(usize, &(&str, &Value))| {
        *index == 0 || operation["x-post-or-get"] != true
    };
    operations.iter().enumerate().filter(shown).map(|(_, operation)| *operation)
}

/// Pretty-printed JSON with a colour for each type of value.
fn highlight(value: &Value, depth: usize, html: &mut String) {
    let indent = |depth: usize| "  ".repeat(depth);
    match value {
        Value::Object(fields) if !fields.is_empty() => {
            html.push_str("{\n");
            for (index, (name, value)) in fields.iter().enumerate() {
                let name = escape(&Value::from(name.as_str()).to_string());
                let _ = write!(html, "{}<span class=\"k\">{name}</span>: ", indent(depth + 1));
                highlight(value, depth + 1, html);
                html.push_str(if index + 1 < fields.len() { ",\n" } else { "\n" });
            }
            let _ = write!(html, "{}}}", indent(depth));
        }
        Value::Array(values) if !values.is_empty() => {
            html.push_str("[\n");
            for (index, value) in values.iter().enumerate() {
                html.push_str(&indent(depth + 1));
                highlight(value, depth + 1, html);
                html.push_str(if index + 1 < values.len() { ",\n" } else { "\n" });
            }
            let _ = write!(html, "{}]", indent(depth));
        }
        other => {
            let class = match other {
                Value::String(_) => "s",
                Value::Number(_) => "n",
                Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => "w",
            };
            let _ = write!(html, "<span class=\"{class}\">{}</span>", escape(&other.to_string()));
        }
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn escape(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => safe.push_str("&amp;"),
            '<' => safe.push_str("&lt;"),
            '>' => safe.push_str("&gt;"),
            '"' => safe.push_str("&quot;"),
            '\'' => safe.push_str("&#39;"),
            c => safe.push(c),
        }
    }
    safe
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn every_text_of_the_document_is_escaped() {
        let odd = "<script>alert('x')</script>\"&";
        let document = json!({
            "info": {"version": odd, "description": odd, "x-description-zh": odd},
            "tags": [{"name": odd, "x-displayName": odd, "description": odd}],
            "paths": {odd: {"post": {
                "operationId": odd, "tags": [odd], "summary": odd, "description": odd, "x-aliases": [odd],
                "parameters": [{"name": odd, "in": odd, "schema": {"type": odd, "enum": [odd]}, "description": odd}],
                "requestBody": {"content": {"application/json": {"example": {odd: odd}, "schema": {
                    "type": "object", "properties": {odd: {"type": odd, "description": odd}}, "required": [odd],
                }}}},
            }}},
            "x-codes": [{"code": 1, "error_code": 1, "description": odd}],
        });
        let page = render(&document, Language::Chinese);
        assert!(!page.contains("<script") && !page.contains("alert('"), "{page}");
        assert!(page.contains("&lt;script&gt;"));
    }
}
