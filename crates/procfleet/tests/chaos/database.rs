//! The PostgreSQL database that several servers share.

use procfleet_testkit::{Cluster, FaultyProxy};

#[derive(Debug)]
pub(crate) struct SharedDatabase {
    home: Home,
    name: String,
}

/// The cluster that has the database.
#[derive(Debug)]
enum Home {
    OfAllGames,
    /// It ends with its game.
    Own(Cluster),
}

impl SharedDatabase {
    /// A database of the cluster that all games share.
    pub(crate) fn new() -> SharedDatabase {
        SharedDatabase::of(Home::OfAllGames)
    }

    pub(crate) fn of_own(cluster: Cluster) -> SharedDatabase {
        SharedDatabase::of(Home::Own(cluster))
    }

    fn of(home: Home) -> SharedDatabase {
        let url = home.cluster().database();
        let name = url.rsplit('/').next().expect("a name").to_owned();
        SharedDatabase { home, name }
    }

    /// The way of one server to it.
    pub(crate) fn proxy(&self) -> FaultyProxy {
        FaultyProxy::to(format!("127.0.0.1:{}", self.home.cluster().port()))
    }

    pub(crate) fn url_by(&self, way: &FaultyProxy) -> String {
        let cluster = self.home.cluster();
        let direct = format!(":{}/", cluster.port());
        cluster.url(&self.name).replace(&direct, &format!(":{}/", way.address().port()))
    }

    /// Runs SQL in it and returns the rows as text.
    pub(crate) fn psql(&self, sql: &str) -> String {
        self.home.cluster().psql(&self.name, sql).unwrap_or_else(|error| panic!("{sql}: {error}"))
    }

    /// The number that the SQL selects.
    pub(crate) fn number(&self, sql: &str) -> i64 {
        self.psql(sql).parse().expect("a number")
    }

    pub(crate) fn count(&self, sql: &str) -> usize {
        usize::try_from(self.number(sql)).expect("a count")
    }

    pub(crate) fn let_in(&self) {
        self.administer(&format!("ALTER DATABASE {} ALLOW_CONNECTIONS true", self.name));
    }

    /// Refuses new connections, and ends those that there are.
    pub(crate) fn shut_out(&self) {
        let name = &self.name;
        self.administer(&format!("ALTER DATABASE {name} ALLOW_CONNECTIONS false"));
        self.administer(&format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{name}'"
        ));
    }

    /// Runs SQL in another database of the cluster.
    fn administer(&self, sql: &str) {
        self.home.cluster().psql("postgres", sql).expect("the cluster itself is there");
    }
}

impl Home {
    fn cluster(&self) -> &Cluster {
        match self {
            Home::OfAllGames => Cluster::shared(),
            Home::Own(cluster) => cluster,
        }
    }
}
