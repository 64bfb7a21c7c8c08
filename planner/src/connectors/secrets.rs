//! Passwords in the text of a statement: what shows definitions to people must not show them.

use std::collections::BTreeMap;

use crate::catalog::ObjectKind;

/// What stands for a secret.
const MASK: &str = "'***'";

/// Whether an option's value is nobody's business.
pub fn is_secret(option: &str) -> bool {
    let parts = ["password", "secret", "jaas", "key.pem", "oauthbearer", "token"];
    parts.iter().any(|part| option.contains(part))
}

/// The statement that made an object, without the secrets among its options.
pub fn masked(text: &str, kind: &ObjectKind) -> String {
    let options = match kind {
        ObjectKind::Source(def) => &def.options,
        ObjectKind::Sink(def) => &def.options,
        ObjectKind::Table(table) => match &table.ingest {
            Some(ingest) => &ingest.source.options,
            None => return text.to_owned(),
        },
        _ => return text.to_owned(),
    };
    mask(text, options)
}

fn mask(text: &str, options: &BTreeMap<String, String>) -> String {
    let mut text = text.to_owned();
    for (option, value) in options.iter().filter(|(_, value)| !value.is_empty()) {
        let written = format!("'{}'", value.replace('\'', "''"));
        if is_secret(option) {
            text = text.replace(&written, MASK);
        } else if option == "jdbc.url"
            && let Some((address, query)) = value.split_once('?')
        {
            let parts = query.split('&').map(|part| match part.split_once('=') {
                Some((key, _)) if is_secret(key) => format!("{key}=***"),
                _ => part.to_owned(),
            });
            let shown = format!("'{address}?{}'", parts.collect::<Vec<_>>().join("&"));
            text = text.replace(&written, &shown.replace("''", "'"));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(list: &[(&str, &str)]) -> BTreeMap<String, String> {
        list.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect()
    }

    #[test]
    fn secrets_are_masked_and_nothing_else_is() {
        let text = "CREATE SINK s FROM v WITH (user = 'u', password = 'it''s', topic = 'p', \
                    jdbc.url = 'jdbc:postgresql://h/d?user=u&password=x&sslmode=require')";
        let given = options(&[
            ("user", "u"),
            ("password", "it's"),
            ("topic", "p"),
            ("jdbc.url", "jdbc:postgresql://h/d?user=u&password=x&sslmode=require"),
        ]);
        assert_eq!(
            mask(text, &given),
            "CREATE SINK s FROM v WITH (user = 'u', password = '***', topic = 'p', \
             jdbc.url = 'jdbc:postgresql://h/d?user=u&password=***&sslmode=require')"
        );
        assert!(is_secret("s3.secret_key") && is_secret("properties.sasl.password") && !is_secret("primary_key"));
    }
}
