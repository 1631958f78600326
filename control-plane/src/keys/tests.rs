//! Keys in memory: who may do what, and what a change does to those who ask.

use http::HeaderValue;

use super::*;

fn headers(name: &'static str, value: &str) -> HeaderMap {
    HeaderMap::from_iter([(http::HeaderName::from_static(name), HeaderValue::from_str(value).unwrap())])
}

async fn store() -> (tempfile::TempDir, Store) {
    let dir = tempfile::tempdir().unwrap();
    let store = Store::open(&dir.path().join("lifeboat.db")).await.unwrap();
    (dir, store)
}

#[test]
fn a_key_is_43_letters_and_digits_and_no_two_are_alike() {
    let (one, two) = (generate("a", &[Scope::Inference]), generate("a", &[Scope::Inference]));
    let body = one.secret.strip_prefix("lb_").unwrap();
    assert_eq!(body.len(), 43);
    assert!(body.chars().all(|character| character.is_ascii_alphanumeric()));
    assert_ne!(one.secret, two.secret);
    assert!(one.secret.starts_with(&one.row.prefix) && one.row.prefix.len() < 12);
}

#[tokio::test]
async fn without_a_key_loopback_is_open_and_anything_else_is_shut() {
    let (_dir, store) = store().await;
    let open = Keys::load(&store, None, true).await.unwrap();
    assert_eq!(open.authorize(&HeaderMap::new(), Scope::Admin), Ok(Principal { key_id: None }));
    let shut = Keys::load(&store, None, false).await.unwrap();
    assert_eq!(shut.authorize(&HeaderMap::new(), Scope::Inference), Err(Denied::Missing));
}

#[tokio::test]
async fn a_key_opens_its_scope_and_nothing_else_until_it_is_revoked() {
    let (_dir, store) = store().await;
    let key = generate("ci", &[Scope::Inference]);
    store.create_key(&key.row).await.unwrap();
    let keys = Keys::load(&store, None, true).await.unwrap();
    let caller = Ok(Principal { key_id: Some(key.row.id) });
    for sent in [
        headers("authorization", &format!("Bearer {}", key.secret)),
        headers("authorization", &format!("bearer  {} ", key.secret)),
        headers("x-api-key", &key.secret),
    ] {
        assert_eq!(keys.authorize(&sent, Scope::Inference), caller, "{sent:?}");
        assert_eq!(keys.authorize(&sent, Scope::Admin), Err(Denied::Scope));
    }
    assert_eq!(keys.authorize(&headers("authorization", "Basic x"), Scope::Inference), Err(Denied::Missing));
    assert_eq!(keys.authorize(&headers("x-api-key", "lb_wrong"), Scope::Inference), Err(Denied::Unknown));
    assert!(store.revoke_key(key.row.id).await.unwrap());
    assert!(!store.revoke_key(key.row.id).await.unwrap(), "a key is revoked once");
    keys.reload(&store).await.unwrap();
    assert!(keys.is_empty());
}

#[tokio::test]
async fn the_last_use_reaches_the_database_with_the_next_flush() {
    let (_dir, store) = store().await;
    let key = generate("ci", &[Scope::Admin]);
    store.create_key(&key.row).await.unwrap();
    let keys = Keys::load(&store, None, true).await.unwrap();
    keys.flush(&store).await.unwrap();
    assert_eq!(store.list_keys().await.unwrap()[0].last_used_at, None);
    keys.authorize(&headers("x-api-key", &key.secret), Scope::Admin).unwrap();
    keys.flush(&store).await.unwrap();
    assert_eq!(store.list_keys().await.unwrap()[0].last_used_at, keys.last_used(key.row.id));
    assert!(keys.last_used(key.row.id).is_some());
}

#[tokio::test]
async fn the_local_token_opens_everything_and_its_file_is_private_and_goes_with_it() {
    let (dir, store) = store().await;
    store.create_key(&generate("ci", &[Scope::Inference]).row).await.unwrap();
    let token = LocalToken::create(dir.path()).unwrap();
    let keys = Keys::load(&store, Some(&token), false).await.unwrap();
    let read = read_local_token(dir.path()).unwrap().unwrap();
    assert!(read.starts_with("lb_local_"));
    let mode = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(local_token_path(dir.path())).unwrap().permissions());
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(keys.authorize(&headers("x-api-key", &read), Scope::Admin), Ok(Principal { key_id: None }));
    drop(token);
    assert_eq!(read_local_token(dir.path()).unwrap(), None);
}
